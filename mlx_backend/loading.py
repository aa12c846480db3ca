"""From a folder to a model that can be served. On the thread that is to own it.

Files are checked first (`model_files`), so that what can be wrong with a model is said in a
sentence: ModelNotFound, ModelDamaged or ModelUnsupported. Nothing is downloaded, and no code that
comes with a model is run, unless that is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_backend.answers import Answers, find_answers
from mlx_backend.context_size import context_size as served_context
from mlx_backend.errors import (
    BackendError,
    ModelDamaged,
    ModelNotFound,
    ModelUnsupported,
)
from mlx_backend.file_limit import open_file_limit_kept
from mlx_backend.grammar import GrammarCompiler, compiler_for
from mlx_backend.identity import identity
from mlx_backend.interface import Backend, OutputStream
from mlx_backend.journal import NO_NOTES, Journals, Notes
from mlx_backend.messages import AnswerForm, Constraint, Grammar, ModelInfo, Prompt, Sampling
from mlx_backend.model_files import (
    check_weights,
    find_folder,
    read_config,
    read_json,
    refuse_own_code,
)
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.recommended import recommended_sampling
from mlx_backend.stop_ids import listed_ids, turn_end_ids
from mlx_backend.templates import FunctionTemplate, JinjaTemplate, Template
from mlx_backend.warm_up import warm_up

if TYPE_CHECKING:
    from mlx_backend.backend import MlxBackend
    from mlx_backend.layers import CacheLayout

_EMBEDDING_NAMES = (
    "embed_tokens",
    "embedding",
    "embeddings",
    "wte",
    "word_embeddings",
    "tok_embeddings",
)


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    adapter: Path | None


@dataclass(frozen=True, slots=True)
class _Device:
    """The model where it computes, and what was found out about it."""

    backend: MlxBackend
    identity: str
    layout: CacheLayout
    kv_bits: int | None
    weight_bytes: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class _Language:
    """What turns messages into ids, and ids into answers."""

    prompts: MlxPromptEncoder
    answers: Answers
    grammars: GrammarCompiler
    stop_ids: frozenset[int]
    sampling: Sampling | None


@dataclass(frozen=True)
class MlxModel:
    """A loaded model, as `interface.LoadedModel` wants it."""

    info: ModelInfo
    backend: Backend
    prompts: MlxPromptEncoder
    answers: Answers
    grammars: GrammarCompiler

    @property
    def call_mark_ids(self) -> frozenset[int]:
        return self.answers.call_mark_ids

    def output(self, form: AnswerForm) -> OutputStream:
        return self.answers.output(form)

    def token_bytes(self, token: int) -> bytes:
        return self.answers.token_text.bytes_of(token)

    def compile(self, constraint: Constraint, prompt: Prompt) -> Grammar:
        return self.grammars.compile(constraint, prompt)


def load(
    path_or_repo: str,
    *,
    kv_bits: int | None = None,
    context_size: int | None = None,
    adapter: str | None = None,
    name: str | None = None,
    pool_bytes: int | None = None,
    wire_weights: bool = False,
    trust_remote_code: bool = False,
    journals: Journals | None = None,
) -> MlxModel:
    """Load a model from a folder, or from a hub repository that is on this machine.

    `kv_bits` 4 or 8 keeps the KV quantised; `context_size` is an upper bound; `adapter` is a
    folder with LoRA weights; `name` is what the API calls the model. `pool_bytes` and
    `wire_weights` are `memory.DeviceLimits`. `trust_remote_code` runs code from the folder.
    `journals` keep what its prompts have to be like for as long as its state is kept.
    """
    files = _find_files(path_or_repo, adapter)
    if not trust_remote_code:
        refuse_own_code(files.folder, files.config)
    model = _load_model(files, trust_remote_code)
    tokenizer = _load_tokenizer(files.folder, trust_remote_code)
    context = served_context(files.config, tokenizer.model_max_length, context_size)
    device = _device(files, model, kv_bits, pool_bytes, wire_weights)
    notes = NO_NOTES if journals is None else journals.of(device.identity)
    language = _language(files, tokenizer, device.vocabulary_size, context[0], notes)
    refusal = warm_up(device.backend, device.vocabulary_size, device.layout.kind)
    info = _info(name or _name(path_or_repo), files, device, language, context)
    if refusal:
        info = replace(info, disk_refusal=refusal, warnings=(*info.warnings, refusal))
    return MlxModel(info, device.backend, language.prompts, language.answers, language.grammars)


def _device(
    files: _Files, model: Any, kv_bits: int | None, pool_bytes: int | None, wire_weights: bool
) -> _Device:
    """Reads the weights."""
    from mlx_backend.backend import MlxBackend
    from mlx_backend.layers import classify
    from mlx_backend.memory import DeviceLimits

    layout = classify(model, kv_bits=kv_bits)
    weight_bytes, rows = _sizes(model)
    vocabulary_size = rows or _vocabulary_size(files.config)
    backend = MlxBackend(model, layout, weight_bytes, DeviceLimits(pool_bytes, wire_weights))
    known_as = _identity(files, layout, kv_bits)
    return _Device(backend, known_as, layout, kv_bits, weight_bytes, vocabulary_size)


def _language(
    files: _Files, tokenizer: Any, vocabulary_size: int, context_size: int, notes: Notes
) -> _Language:
    prompts = _prompts(tokenizer, vocabulary_size, context_size, notes)
    generation_config = read_json(files.folder / "generation_config.json", optional=True)
    answers = find_answers(
        tokenizer.backend_tokenizer,
        _template_source(tokenizer),
        shows_tools=prompts.traits is None or prompts.traits.shows_tools,
    )
    listed = listed_ids(files.config, generation_config) | answers.ending_ids
    stop_ids = _stop_ids(listed, tokenizer, prompts)
    tokens = prompts.control.tokens
    grammars = compiler_for(tokenizer.backend_tokenizer, answers.format, tokens, stop_ids)
    sampling = recommended_sampling(generation_config, prompts.vocabulary.size)
    return _Language(prompts, answers, grammars, stop_ids, sampling)


def _info(
    name: str,
    files: _Files,
    device: _Device,
    language: _Language,
    context: tuple[int, tuple[str, ...]],
) -> ModelInfo:
    """`context`: its size, and what there is to be warned of."""
    layout, backend = device.layout, device.backend
    return ModelInfo(
        name=name,
        path=str(files.folder),
        identity=device.identity,
        cache_kind=layout.kind,
        cache_classes=layout.class_names,
        vocabulary_size=device.vocabulary_size,
        context_size=context[0],
        stop_ids=language.stop_ids,
        weight_bytes=device.weight_bytes,
        span_token_bytes=layout.span_token_bytes,
        checkpoint_bytes=layout.checkpoint_bytes,
        ring_token_bytes=layout.ring_token_bytes,
        kv_bits=device.kv_bits,
        warnings=(*layout.warnings, *backend.warnings, *context[1], *language.prompts.warnings),
        default_sampling=language.sampling,
    )


def load_prompts(path_or_repo: str) -> MlxPromptEncoder:
    """The model's prompt encoder alone, for whoever counts tokens: no weights are read."""
    folder = find_folder(path_or_repo)
    config = read_config(folder)
    tokenizer = _load_tokenizer(folder)
    return _prompts(tokenizer, _vocabulary_size(config))


def _name(path_or_repo: str) -> str:
    """The folder's name; of a repository the part without its owner."""
    path = Path(path_or_repo).expanduser()
    return path.resolve().name if path.is_dir() else path.name


def _find_files(path_or_repo: str, adapter: str | None) -> _Files:
    adapter_folder = None if adapter is None else _adapter_folder(adapter)
    folder = find_folder(path_or_repo)
    return _Files(folder, read_config(folder), check_weights(folder), adapter_folder)


def _identity(files: _Files, layout: CacheLayout, kv_bits: int | None) -> str:
    import mlx_lm

    return identity(
        files.folder,
        files.weights,
        cache_classes=layout.class_names,
        kv_bits=kv_bits,
        adapter=files.adapter,
        mlx_lm_version=mlx_lm.__version__,
    )


def _adapter_folder(adapter: str) -> Path:
    folder = Path(adapter).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise ModelNotFound(f"{adapter} is not a folder with an adapter_config.json.")
    return folder.resolve()


def _load_model(files: _Files, trust_remote_code: bool) -> Any:
    """The model, its weights still to be read: what contradicts itself is found at once."""
    with open_file_limit_kept():
        from mlx_lm.utils import load_adapters, load_model

    try:
        model, _ = load_model(files.folder, lazy=True, trust_remote_code=trust_remote_code)
        if files.adapter is not None:
            model = load_adapters(model, str(files.adapter))
            model.eval()
    except Exception as error:  # configs and weights can contradict each other in any way
        raise _why_not_loaded(files.folder, error) from error
    return model


def _why_not_loaded(folder: Path, error: Exception) -> BackendError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "not supported" in said or isinstance(error, (AttributeError, NotImplementedError)):
        return ModelUnsupported(f"mlx-lm cannot run the model in {folder}: {said}")
    return ModelDamaged(f"The model in {folder} cannot be loaded: {said}")


def _load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """mlx-lm's wrapper of the tokenizer, which must be one of the `tokenizers` library."""
    with open_file_limit_kept():
        from mlx_lm.utils import load_tokenizer
        from transformers.utils import logging

    logging.set_verbosity_error()  # it warns of every model_type that is mlx-lm's own
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = load_tokenizer(folder, options)
    except Exception as error:  # as above
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelDamaged(f"The tokenizer in {folder} cannot be loaded: {said}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelUnsupported(f"The tokenizer in {folder} is not in the tokenizer.json format.")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _prompts(
    tokenizer: Any,
    vocabulary_size: int,
    context_size: int | None = None,
    notes: Notes = NO_NOTES,
) -> MlxPromptEncoder:
    return MlxPromptEncoder(
        tokenizer.backend_tokenizer,
        _template(tokenizer),
        Vocabulary(vocabulary_size, _bos_id(tokenizer)),
        context_size=context_size,
        notes=notes,
    )


def _template(tokenizer: Any) -> Template | None:
    sources = tokenizer.chat_template
    if tokenizer._chat_template is not None:  # mlx-lm ships a function for this model
        function: Callable[..., str] = tokenizer._chat_template
        return FunctionTemplate(
            function, inspect.getsource(inspect.getmodule(function) or function)
        )
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    if isinstance(sources, Mapping):
        plain = sources.get("default") or next(iter(sources.values()))
        return JinjaTemplate(plain, special, sources.get("tool_use"))
    return JinjaTemplate(sources, special) if sources else None


def _template_source(tokenizer: Any) -> str:
    template = _template(tokenizer)
    return "" if template is None else template.source


def _bos_id(tokenizer: Any) -> int | None:
    """What the tokenizer puts in front of plain text, if that is its beginning-of-text token."""
    bos = tokenizer.bos_token_id
    ids = tokenizer.encode("a", add_special_tokens=True)
    return int(bos) if bos is not None and ids[:1] == [bos] else None


def _stop_ids(listed: frozenset[int], tokenizer: Any, prompts: MlxPromptEncoder) -> frozenset[int]:
    found = set(listed) | set(tokenizer.eos_token_ids) | prompts.fill_in_end_ids
    template = _template(tokenizer)
    if template is not None:
        found |= turn_end_ids(template, prompts.control)
    return frozenset(token for token in found if 0 <= token < prompts.vocabulary.size)


def _vocabulary_size(config: Mapping[str, Any]) -> int:
    for scope in (config, config.get("text_config") or {}):
        if isinstance(scope.get("vocab_size"), int):
            return int(scope["vocab_size"])
    raise ModelDamaged("config.json gives no vocab_size, and the model has no embedding.")


def _sizes(model: Any) -> tuple[int, int | None]:
    """Read the weights: their bytes, and the rows of the embedding, None if it is not known."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    mx.eval(model.parameters())
    weight_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    rows = [
        module.weight.shape[0]
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.QuantizedEmbedding))
        and name.rsplit(".", 1)[-1] in _EMBEDDING_NAMES
    ]
    return weight_bytes, min(rows) if rows else None
