"""Files that try to exhaust memory or time, to run code, or to lead out of their folder; cheap to make, holes and promises."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.entry import canonical, parse_entry
from regbench.leaderboard.store import Stored
from regbench.leaderboard.verify import verify_entry, verify_run
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from tests.leaderboard.attacks import seal

GIGABYTE = 1 << 30


def sparse(path: Path, size: int = 4 * GIGABYTE, begin: bytes = b"") -> None:
    """A file of that size that takes no disk."""
    path.write_bytes(begin)
    os.truncate(path, size)


def texts(entry: bytes) -> Iterator[tuple[str, bytes]]:
    """What an entry's file might hold instead."""
    million = 1_000_000
    yield "nothing", b""
    yield "a deep list", b"[" * million
    yield "very many keys", b"{" + b",".join(b'"%d":1' % i for i in range(150_000)) + b"}"
    yield "very many faults", entry.replace(b'"counts": [', b'"counts": [' + b'"x",' * 300_000, 1)
    yield "very many instances", entry.replace(b'"counts": [', b'"counts": [' + b"1," * 900_000, 1)
    yield "not UTF-8", entry[:100] + b"\xff\xfe\xfd" + entry[100:]
    yield "a pickle", b"cos\nsystem\n(S'touch hacked'\ntR."


def sealed(entry: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries whose options are the attack; the configuration agrees with them, the digest is right."""

    def asking(**settings: Any) -> dict[str, Any]:
        content = json.loads(entry)
        content["configuration"]["settings"].update({k.replace("__", "."): v for k, v in settings.items()})
        own = {k: v for k, v in settings.items() if not k.startswith("training__")}
        content["result"]["architecture"]["options"].update(own)
        content["result"]["training"].update(
            {k.removeprefix("training__"): v for k, v in settings.items() if k not in own}
        )
        return seal(content)

    yield "65,536 layers", asking(n_layers=65_536)
    yield "a width of 2^62", asking(d_model=2**62)
    yield "8,000 n-gram heads", asking(n_layers=1000, ngram_after=list(range(1, 61)), ngram_heads=[8] * 60)
    yield "batches of one, for ever", asking(training__batch_size=1, training__epochs=2**40)
    yield "a budget of 2^62 tokens", asking(training__train_tokens=2**62)
    content = json.loads(entry)
    content["result"]["seeds"] = [{**content["result"]["seeds"][0], "seed": i} for i in range(150)]
    content["instances"]["sums"] = content["instances"]["sums"][:1] * 150
    content["configuration"]["seeds"] = list(range(150))
    yield "150 seeds", seal(content)
    content = json.loads(entry)
    content["configuration"]["settings"] = {f"x{i}": i for i in range(100_000)}
    yield "very many settings", seal(content)
    content["configuration"]["settings"] = {"d_model": [["x" * 1000] * 64] * 10}
    yield "a long setting", seal(content)


def entries(honest: Path, folder: Path) -> Iterator[Path]:
    """Files of entries, each in a folder of its own that says what it is."""
    entry = honest.read_bytes()
    for name, text in texts(entry):
        yield _put(folder, name, honest.name, lambda path, text=text: path.write_bytes(text))
    for name, content in sealed(entry):
        file = parse_entry(content, name).file_name
        yield _put(folder, name, file, lambda path, content=content: path.write_text(canonical(content)))
    for name, make in special(honest):
        yield _put(folder, name, honest.name, make)


def special(honest: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """What is no plain file, or is too large."""
    yield "a hole of 4 GiB", sparse
    yield "a hole of 4 GiB after the entry", lambda path: sparse(path, begin=honest.read_bytes())
    yield "a pipe", lambda path: os.mkfifo(path)
    yield "a folder", lambda path: path.mkdir()
    yield "a link", lambda path: path.symlink_to(honest)
    yield "a link to itself", lambda path: path.symlink_to(path)


def archives() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Files in the place of predictions."""

    def array(data: Any, **options: Any) -> bytes:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, data, **options)
        return stream.getvalue()

    def archive(**members: bytes) -> Callable[[Path], object]:
        def make(path: Path) -> None:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                for name, content in members.items():
                    file.writestr(f"{name}.npy", content)

        return make

    lengths = array(np.zeros(24, np.int64))
    header = b"{'descr': '<f2', 'fortran_order': False, 'shape': (1099511627776, 5), }\n"
    promise = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    yield "zeros that unpack to 64 MiB", archive(packed=bytes(1 << 26), lengths=lengths)
    yield "an array of a petabyte, promised", archive(packed=promise, lengths=lengths)
    yield "an array of objects", archive(packed=array(np.array([print], object), allow_pickle=True), lengths=lengths)
    yield "a member that leaves the folder", archive(**{"../../packed": promise, "lengths": lengths})
    yield (
        "a header of Python",
        archive(packed=b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').abort()".ljust(32), lengths=lengths),
    )
    yield "a deep header", archive(packed=b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 8192, lengths=lengths)
    yield "a hole of 4 GiB", sparse
    yield "no archive", lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18))
    yield "a pipe", lambda path: os.mkfifo(path)
    yield "a link", lambda path: path.symlink_to("/dev/zero")
    yield "a size that lies", _lying


def _lying(path: Path) -> None:
    """The directory says 2 GiB, what is packed is 64 MiB of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("packed.npy", bytes(1 << 26))
        file.writestr("lengths.npy", b"")
    content = path.read_bytes()
    path.write_bytes(content.replace((1 << 26).to_bytes(4, "little"), (1 << 31).to_bytes(4, "little")))


def configurations() -> Iterator[tuple[str, bytes]]:
    """In the place of `config.yaml`."""
    lol = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    yield "laughs", lol.encode()
    yield "deep", b"[" * 8000
    yield "Python", b"!!python/object/apply:os.system ['touch hacked']"
    yield "not UTF-8", b"\xff\xfe\x00"


def weights() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """In the place of a checkpoint."""

    def header(content: Any, size: int | None = None) -> Callable[[Path], object]:
        text = json.dumps(content).encode()
        return lambda path: sparse(path, size or 8 + len(text), len(text).to_bytes(8, "little") + text)

    yield "a header of 2^60 bytes", lambda path: sparse(path, 4 * GIGABYTE, (1 << 60).to_bytes(8, "little"))
    yield "a tensor of 2^60 numbers", header({"a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}})
    yield "a shape of very many ones", header({"a": {"dtype": "F32", "shape": [1] * 200_000, "data_offsets": [0, 4]}})
    yield (
        "tensors on top of each other",
        header({x: {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]} for x in "ab"}, 9000),
    )
    yield "an unknown type", header({"a": {"dtype": "EVIL", "shape": [1], "data_offsets": [0, 4]}})
    yield "a deep header", lambda path: path.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    yield "a pickle", lambda path: path.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")


def runs(honest: Path, folder: Path) -> Iterator[Path]:
    """Run folders with one file that is not what it was."""

    def spoiled(name: str, file: str, make: Callable[[Path], object]) -> Path:
        run = folder / name
        shutil.copytree(honest, run, ignore=shutil.ignore_patterns("*.png", "*.html"))
        (run / file).unlink()
        make(run / file)
        return run

    for file in ("result.json", "config.yaml", "seed-1/predictions.npz"):
        for name, make in special(honest / file):
            yield spoiled(f"{file.replace('/', ' ')}: {name}", file, make)
    for name, content in configurations():
        yield spoiled(f"configuration: {name}", "config.yaml", lambda path, content=content: path.write_bytes(content))
    for name, make in archives():
        yield spoiled(f"predictions: {name}", "seed-0/predictions.npz", make)
    for name, make in weights():
        yield spoiled(f"weights: {name}", "seed-2/checkpoint.safetensors", make)
    run = folder / "a seed's folder is a link"
    shutil.copytree(honest, run)
    shutil.rmtree(run / "seed-1")
    (run / "seed-1").symlink_to(honest / "seed-1")
    yield run


def _put(folder: Path, name: str, file: str, make: Callable[[Path], object]) -> Path:
    path = folder / name / "tiny-v1" / file
    path.parent.mkdir(parents=True)
    make(path)
    return path


def verified(path: Path, track: Track) -> list[str]:
    """What is wrong with an entry, or with a run and its weights."""
    try:
        if path.is_dir():
            findings = verify_run(path, track)[1]
            if not findings.faults:
                repredict(path, findings, track)
        else:
            findings = verify_entry(Stored(path), track=track)
    except UserError as error:
        return [str(error)]
    return [str(fault) for fault in findings.faults]


def main(track: str, entry: str, run: str, folder: str) -> None:
    """Verifies all of them in this process; prints what came of each, its processor time, and the most memory there was."""
    own, place = load_track(track), Path(folder)
    assert verified(Path(entry), own) == verified(Path(run), own) == []
    report = {}
    for path in (*entries(Path(entry), place / "entries"), *runs(Path(run), place / "runs")):
        started = time.process_time()
        report[str(path.relative_to(place))] = [verified(path, own), time.process_time() - started]
    # `getrusage` would count what the process that started this one had in memory.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"report": report, "memory": int(peak.split()[1]) * 1024}))


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
