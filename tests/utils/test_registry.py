"""Finding things by file, by entry point and by path; refusing what cannot be found, in one line."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest
from torch import Tensor

import regbench
from regbench.utils import registry
from regbench.utils.errors import UserError, blame, nearest
from regbench.utils.registry import ARCHITECTURE, BASELINE, TASK, Kind

MIXER = "import regbench\nclass {name}(regbench.Mixer):\n    def forward(self, x):\n        return x\n"


def test_built_ins_are_found_by_file() -> None:
    assert {"lstm", "mamba", "transformer"} <= set(registry.entries(ARCHITECTURE))
    assert {"uniform", "ngram", "baum_welch", "oracle"} <= set(registry.entries(BASELINE))
    tasks = set(registry.entries(TASK))
    assert {"pfa", "mqar", "text", "state_walk"} <= tasks
    assert not {"base", "automata", "bigram_chain", "distinct"} & tasks, "modules that define none"
    assert registry.load(ARCHITECTURE, "lstm").__name__ == "LSTM"


@pytest.mark.parametrize("line", ['only_task = "mqar"', 'only_task: ClassVar[str | None] = "mqar"'])
def test_the_single_task_of_a_baseline_is_read_from_its_file(plugged: tuple[Kind, Path], line: str) -> None:
    _, folder = plugged
    (folder / "own.py").write_text(f"import regbench\nclass Own(regbench.Baseline):\n    {line}\n")
    assert registry.entries(replace(BASELINE, package=folder.name))["own"].only_task == "mqar"


def test_listing_imports_nothing() -> None:
    code = (
        "import sys; from regbench.utils import registry\n"
        "for kind in registry.KINDS.values(): registry.entries(kind)\n"
        "bad = [m for m in sys.modules if m.startswith(('architectures', 'baselines', 'regbench.tasks.', 'torch', 'numba'))]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MIXER.format(name="Mine"))
    assert registry.load(ARCHITECTURE, str(path)).__name__ == "Mine"
    assert registry.load(ARCHITECTURE, f"{path}:Mine").__name__ == "Mine"
    assert registry.short_name(str(path)) == "mine"
    assert registry.short_name(f"{path}:Mine") == "Mine"


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kind, Path]:
    """A kind of architecture whose built-ins are in a folder of the test's own."""
    folder = tmp_path / f"built_ins_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return replace(ARCHITECTURE, package=folder.name), folder


def test_a_package_is_found_as_a_file_is(plugged: tuple[Kind, Path]) -> None:
    """Its `__init__.py` defines the class; a folder without one, or without a class, is no architecture."""
    kind, folder = plugged
    for name in ("large", "configs", "helpers", "_private"):
        (folder / name).mkdir()
    (folder / "large" / "__init__.py").write_text('"""A large one."""\n' + MIXER.format(name="Large"))
    (folder / "_private" / "__init__.py").write_text(MIXER.format(name="Private"))
    (folder / "helpers" / "__init__.py").write_text("x = 1\n")
    (folder / "small.py").write_text(MIXER.format(name="Small"))
    found = registry.entries(kind)
    assert list(found) == ["large", "small"]
    assert found["large"].source == f"{folder.name}/large/__init__.py"
    assert found["large"].target == f"{folder.name}.large"
    assert found["large"].summary == "A large one."
    assert f"{folder.name}.large" not in sys.modules
    large = registry.load(kind, "large")
    assert (large.__name__, large.__module__) == ("Large", f"{folder.name}.large")
    assert registry.is_built_in(kind, large)
    (folder / "large.py").write_text(MIXER.format(name="Other"))
    with pytest.raises(UserError, match=r"'large' is registered twice: by .*/large.py and .*/large/__init__.py"):
        registry.entries(kind)


def test_the_source_digest_of_a_package_covers_the_modules_that_it_imports(plugged: tuple[Kind, Path]) -> None:
    """Its own and those of its neighbours, with the `__init__.py` of every package on the way but the outermost."""
    kind, folder = plugged
    for name in ("wide", "deep", "deep/inner"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    imports = f"from {folder.name}.wide import near\nfrom . import here\nfrom {folder.name}.deep.inner.far import x\n"
    (folder / "wide" / "__init__.py").write_text(imports + MIXER.format(name="Wide"))
    for name in ("wide/near.py", "wide/here.py", "wide/unused.py", "deep/inner/far.py"):
        (folder / name).write_text("x = 1\n")
    cls = registry.load(kind, "wide")
    found = [path.relative_to(folder).as_posix() for path in registry.source_files(cls)]
    wanted = ["__init__.py", "here.py", "near.py"]
    assert found == ["deep/__init__.py", "deep/inner/__init__.py", "deep/inner/far.py", *(f"wide/{n}" for n in wanted)]
    digests = {registry.source_digest(cls)}
    for name in found:
        (folder / name).write_text((folder / name).read_text() + "# edited\n")
        digests.add(registry.source_digest(cls))
    assert len(digests) == 1 + len(found)


def test_a_class_of_the_program_is_taken_as_it_is() -> None:
    class Mine(regbench.Mixer):
        def forward(self, x: Tensor) -> Tensor:
            return x

    name = registry.name_of(ARCHITECTURE, Mine)
    assert (name, registry.short_name(name), registry.is_file(name)) == ("class:Mine", "Mine", False)
    assert registry.load(ARCHITECTURE, Mine) is Mine
    assert Path(__file__) in registry.source_files(Mine)
    inner = type("Inner", (Mine,), {"__module__": "architectures.cgt"})
    assert registry.name_of(ARCHITECTURE, inner) == "class:Inner", "not cgt itself"
    assert registry.name_of(ARCHITECTURE, registry.load(ARCHITECTURE, "mamba")) == "mamba"
    assert registry.name_of(TASK, registry.load(TASK, "pfa")) == "pfa"
    with pytest.raises(UserError, match="'class:Mine' is a class of the program that ran it: write it to a file"):
        registry.load(ARCHITECTURE, name)
    with pytest.raises(UserError, match="the class int is no architecture: it must subclass regbench.Mixer"):
        registry.load(ARCHITECTURE, int)


def test_the_source_digest_of_a_class_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in no file: its methods and plain attributes count, and those of its bases."""

    class Mine(regbench.Mixer):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class Inherits(Mine):
        pass

    for cls in (Mine, Inherits):
        monkeypatch.setattr(cls, "__module__", "notebook")
    digests = [registry.source_digest(Inherits)]
    monkeypatch.setattr(Mine, "forward", lambda self, x: x + 1)
    digests.append(registry.source_digest(Inherits))
    monkeypatch.setattr(Mine, "feed_forward", False)
    digests.append(registry.source_digest(Inherits))
    assert len(set(digests)) == 3
    made: dict[str, Any] = {"__name__": "made", "regbench": regbench}
    exec("class Made(regbench.Mixer):\n    def forward(self, x):\n        return x", made)
    with pytest.raises(UserError, match=r"the source of Made.forward is not known here: write the class to a file"):
        registry.source_digest(made["Made"])


def test_a_plug_in_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Python finds what lies beside it, as from its own folder: an edit of that would go unseen."""
    (tmp_path / "mine.py").write_text("from my_layers import WIDTH\n" + MIXER.format(name="Mine"))
    (tmp_path / "my_layers.py").write_text("WIDTH = 4\n")
    path = list(sys.path)
    with pytest.raises(UserError, match=r"mine.py:1: ModuleNotFoundError: No module named 'my_layers'"):
        registry.load(ARCHITECTURE, str(tmp_path / "mine.py"))
    assert sys.path == path
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"mine.py imports my_layers, which lies beside it: put both into one file"):
            registry.load(ARCHITECTURE, str(tmp_path / "mine.py"))


def test_a_plug_in_may_import_what_is_in_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it lies in the folder of that package, as the file of a built-in architecture does."""
    (folder,) = registry.folders_of("architectures")
    monkeypatch.delitem(sys.modules, "architectures._delta_mixer", raising=False)
    assert registry.load(ARCHITECTURE, str(folder / "mamba2.py")).__name__ == "Mamba2"


def test_a_strangers_mamba_hides_no_built_in(tmp_path: Path) -> None:
    path = tmp_path / "mamba.py"
    path.write_text(MIXER.format(name="Impostor"))
    assert registry.load(ARCHITECTURE, str(path)).__name__ == "Impostor"
    assert registry.load(ARCHITECTURE, "mamba").__name__ == "Mamba"


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        (MIXER.format(name="A") + MIXER.format(name="B"), "", r"several architectures \(A, B\): say which, as .*:A"),
        ("x = 1\n", "", "defines no architecture: it needs a class that subclasses regbench.Mixer"),
        ("class A: pass\n", ":A", "'A' in .* is no architecture"),
        (MIXER.format(name="Average"), ":Avrage", "no class 'Avrage'; did you mean 'Average'"),
        ("def f(:\n", "", r"mine.py:1: SyntaxError"),
        ("\n\n1 / 0\n", "", r"mine.py:3: ZeroDivisionError: division by zero"),
        ("import sys\n\nsys.exit(3)\n", "", r"mine.py cannot be imported: .*mine.py:3: SystemExit: 3"),
        (
            MIXER.format(name="Plain") + "    class Options:\n        a: int = 1\n",
            "",
            "Options of Plain in .*mine.py must subclass regbench.Options",
        ),
        (
            MIXER.format(name="Plain") + "    class Options:\n        a: int = 1\n",
            ":Plain",
            "Options of Plain in .*mine.py must subclass regbench.Options",
        ),
        (
            MIXER.format(name="Plain") + "    paper = 'mine'\n",
            "",
            "paper of Plain in .* must be a regbench.Paper, not str",
        ),
        ("import nowhere_at_all\n", "", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str, suffix: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        registry.load(ARCHITECTURE, f"{path}{suffix}")
    assert "\n" not in str(caught.value)


def test_unknown_names_suggest_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="unknown task 'xyz'; known: arithmetic, associative_recall, bigram, cla"):
        registry.load(TASK, "xyz")
    (tmp_path / "manba.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"unknown architecture 'manba'; the file here is manba.py"):
        registry.load(ARCHITECTURE, "manba")
    assert nearest("xyz", ["oracle", "bayes", "oracle"]) == "; known: bayes, oracle"


class _Point:
    """An entry point of a made-up distribution."""

    dist = None

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value


def _with_entry_points(monkeypatch: pytest.MonkeyPatch, *points: _Point) -> None:
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: list(points) if group == "regbench.architectures" else []
    )


def test_entry_points_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger_plugin.py").write_text(MIXER.format(name="Stranger"))
    monkeypatch.syspath_prepend(str(tmp_path))
    _with_entry_points(monkeypatch, _Point("stranger", "stranger_plugin:Stranger"))
    assert "stranger" in registry.entries(ARCHITECTURE)
    assert registry.load(ARCHITECTURE, "stranger").__name__ == "Stranger"


def test_a_name_met_twice_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_entry_points(monkeypatch, _Point("mamba", "elsewhere:Mamba"))
    with pytest.raises(UserError, match="'mamba' is registered twice: by architectures/mamba.py and .*elsewhere:Mamba"):
        registry.entries(ARCHITECTURE)


def test_an_entry_point_that_does_not_import_or_leaves_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_that_leaves.py").write_text("raise SystemExit('not today')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _with_entry_points(
        monkeypatch, _Point("gone", "no_such_module_anywhere:X"), _Point("leaves", "plugin_that_leaves:X")
    )
    for name, why in (("gone", "no_such_module_anywhere"), ("leaves", "leaves.py:1: SystemExit: not today")):
        with pytest.raises(UserError, match=f"architecture '{name}' cannot be imported: .*{why}"):
            registry.load(ARCHITECTURE, name)


def test_an_error_is_blamed_on_the_place_outside_regbench() -> None:
    """Where the fault shows in regbench, on the line that led there; on regbench itself never."""
    with pytest.raises(UserError) as caught:
        registry.load(ARCHITECTURE, "manba")
    error = caught.value
    assert blame(error).startswith(f"{__file__}:")
    error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
    assert blame(error).startswith("UserError: unknown architecture")


def test_of_many_faults_that_pydantic_finds_the_first_is_told() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        registry.load(ARCHITECTURE, "lstm").Options(d_model=0, n_layers=0)
    caught.value.__traceback__ = None
    assert (
        blame(caught.value) == "ValidationError: Options: d_model: input should be greater than or equal to 1 (given 0)"
    )


def test_source_files_are_those_that_decide_what_a_baseline_does() -> None:
    names = [path.name for path in registry.source_files(registry.load(BASELINE, "ngram"))]
    assert names == ["ngram.py"]
    assert [p.name for p in registry.source_files(registry.load(ARCHITECTURE, "lstm"))] == ["lstm.py"]


def test_the_source_digest_covers_what_an_architecture_borrows(monkeypatch: pytest.MonkeyPatch) -> None:
    h3 = registry.load(ARCHITECTURE, "h3")
    assert [p.name for p in registry.source_files(h3)] == ["h3.py", "s4.py"]
    before = registry.source_digest(h3)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"# edited" * (path.name == "s4.py"))
    assert registry.source_digest(h3) != before
