"""The tokenizer inside a GGUF file, with the interface of `transformers` tokenizers.

`transformers` converts those of the architectures that it knows; for others the vocabulary, merges or scores, special
tokens and chat template of the file become a `tokenizers` tokenizer here. Keys: ggml's docs/gguf.md. Opens no
connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vkinductor.llm.errors import ModelFormatError, UnsupportedModelError
from vkinductor.llm.gguf import fast_reading
from vkinductor.llm.gguf_file import GGUFFile

# ggml's types of tokens.
_CONTROL, _USER_DEFINED = 3, 4
_LISTS = ("tokens", "scores", "merges", "token_type")
# What a sentencepiece vocabulary writes for a space.
_SPACE = "\u2581"

# Control tokens that end a turn, by text: files name one end at most, chats have another.
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
)


def load_tokenizer(path: Path, transformers: Any) -> Any:
    """The tokenizer of the GGUF file `path`, which has been checked.

    Raises UnsupportedModelError for a kind of vocabulary that is not known, ModelFormatError for a damaged one.
    """
    try:
        with fast_reading():
            return transformers.AutoTokenizer.from_pretrained(
                str(path.parent), gguf_file=path.name, local_files_only=True
            )
    except MemoryError:
        raise
    except Exception:  # an architecture that it does not know, or a damaged list: what is built here says which
        return build_tokenizer(path, transformers)


def build_tokenizer(path: Path, transformers: Any) -> Any:
    """The same without `transformers`' own conversion: splits are GPT-2's for vocabularies of bytes, whatever the file
    calls them."""
    file = GGUFFile(path, whole=[f"tokenizer.ggml.{name}" for name in _LISTS])
    kind = file.value("tokenizer.ggml.model", str)
    if kind not in _BUILDERS:
        raise UnsupportedModelError(f"{path}: a tokenizer of kind {kind!r} is not known (only {', '.join(_BUILDERS)})")
    try:
        tokens = [token.decode() for token in _list(file, "tokens")]
        tokenizer = _BUILDERS[kind](file, tokens)
        _add_tokens(tokenizer, file, tokens)
        names = {
            name: tokens[index]
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if (index := file.value(f"tokenizer.ggml.{key}_token_id", int)) is not None
        }
        if file.value("tokenizer.ggml.add_bos_token", bool, kind == "llama") and "bos" in names:
            _begin_with(tokenizer, names["bos"])
    except MemoryError:
        raise
    except Exception as error:  # the lists are the file's, and so is whatever is wrong with them
        raise ModelFormatError(f"{path}: its tokenizer cannot be built: {error}") from error
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=file.value("tokenizer.chat_template", str),
        **{f"{name}_token": token for name, token in names.items()},
    )


def stop_tokens(tokenizer: Any, ends: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a text: `ends`, as the file names them, and the ends of turns in the vocabulary."""
    added = tokenizer.get_added_vocab()
    return tuple(dict.fromkeys((*ends, *(added[text] for text in TURN_ENDS if text in added))))


def _list(file: GGUFFile, name: str) -> list[Any]:
    values = file.value(f"tokenizer.ggml.{name}", list)
    if values is None:
        raise ModelFormatError(f"{file.path}: no tokenizer.ggml.{name}")
    return list(values)


def _byte_pairs(file: GGUFFile, tokens: list[str]) -> Any:
    """Byte-level BPE: the file has the merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.decode().split(" ", 1)) for merge in _list(file, "merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=file.value("tokenizer.ggml.add_space_prefix", bool, False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _scored_pairs(file: GGUFFile, tokens: list[str]) -> Any:
    """Sentencepiece: any two tokens that make a third may merge, those of the best score first; other characters are
    spelled in bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: index for index, token in enumerate(tokens)}
    scores = _list(file, "scores")
    merges = [
        (-scores[index], index, cut, token)
        for token, index in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    unknown = file.value("tokenizer.ggml.unknown_token_id", int)
    model = models.BPE(
        vocab=vocabulary,
        merges=[(token[:cut], token[cut:]) for _, _, cut, token in sorted(merges)],
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = file.value("tokenizer.ggml.add_space_prefix", bool, True)
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    undo: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if prefix else undo)
    return tokenizer


_BUILDERS = {"gpt2": _byte_pairs, "llama": _scored_pairs}


def _add_tokens(tokenizer: Any, file: GGUFFile, tokens: list[str]) -> None:
    """Control tokens are special, those of the user are whole: neither is cut into pieces."""
    from tokenizers import AddedToken

    kinds = file.value("tokenizer.ggml.token_type", list) or ()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [token for token, its in zip(tokens, kinds, strict=False) if its == kind]
        added = [AddedToken(token, normalized=False, special=special) for token in found]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _begin_with(tokenizer: Any, token: str) -> None:
    from tokenizers import processors

    beginning = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, tokenizer.token_to_id(token))]
    )
    # Bytes of a byte-level vocabulary need no processing of their own: offsets are not used.
    tokenizer.post_processor = beginning
