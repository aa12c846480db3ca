"""What the command line shows, built from status and results. Pure: nothing here prints.

Everything is readable at 80 columns and in a pipe: no colour carries a meaning, no box is drawn,
numbers are never cut, and words that are too long go on in the next line. Names and messages that
clients sent are shown as text: never as markup, never as commands to a terminal.
"""
