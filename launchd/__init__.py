"""What ties mlxd to macOS: the LaunchAgent and the menu bar. Knows nothing of models or HTTP."""
