"""`regbench specialize`: the file, what it says is saved, the prompt's file, generated text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

from architectures.cgt import ContextuallyGuided
from papers.cgt.prompts import (
    generate,
    load_specialised,
    read_prompt,
    specialise,
    write_tokens,
)
from papers.cost import stream_bytes
from regbench import cli
from regbench.analysis.trained import Trained
from regbench.models.model import parameter_count
from regbench.tasks.base import TokenIO, VectorIO
from regbench.utils.errors import UserError
from tests.helpers.typed import refused

LETTERS = SimpleNamespace(io=TokenIO(vocab_size=3, separator=2, max_length=9, names=("a", "b", "|")))
WORDS = SimpleNamespace(io=TokenIO(vocab_size=3, separator=2, max_length=9, names=("one", "two", "|")))


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text("ab ca|\nbb|")
    return path


@pytest.mark.ci
def test_the_command_writes_a_model_that_can_be_read_again(
    run_folder: Path, trained: Trained, prompt_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "special.safetensors"
    assert cli.main(["specialize", str(run_folder), "--prompt", str(prompt_file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    prompt = read_prompt(prompt_file, trained.track.task)
    assert "a prompt of 8 tokens" in said
    assert "whole model," in said
    assert "with the prompt" in said
    assert "read again" not in said  # that is x alone, with a constant y
    assert "largest difference to the whole model with a constant y" in said
    model, text = load_specialised(out), torch.randint(4, (2, 10))
    frozen = trained.model.with_context(text, trained.model.summary(prompt[None]).expand(2, -1))  # type: ignore[operator]
    torch.testing.assert_close(model(text), frozen, atol=1e-5, rtol=1e-5)
    assert f"{parameter_count(model):,}" in said


def test_what_is_saved_is_measured(trained: Trained) -> None:
    prompt = torch.tensor([0, 1, 4, 1, 0, 4])
    special = specialise(trained, prompt)
    longest = trained.track.task.io.max_length
    assert special.text == longest - 6
    assert special.difference < 1e-5
    assert special.alone.parameters < special.with_prompt.parameters
    assert special.alone.flops < 0.6 * special.with_prompt.flops
    # x of three layers; and x with y of the two below l: both of the prompt too
    assert special.alone.state_bytes == 4 * 2 * 3 * 16 * (longest - 6)
    assert special.with_prompt.state_bytes == 4 * 2 * (3 * 16 + 2 * 8) * longest


def test_a_prompt_past_what_the_model_can_reckon_is_refused() -> None:
    """Each number is finite, but not what becomes of it."""
    io = VectorIO(d_in=3, d_out=1, max_length=8)
    model = ContextuallyGuided(ContextuallyGuided.Options(d_model=8, d_y=8), io).eval()
    task = SimpleNamespace(task=SimpleNamespace(io=io))
    with pytest.raises(UserError, match="weights that are not finite: its numbers are too large for the model"):
        specialise(Trained(Path(), "cgt", 0, task, model), torch.full((2, 3), 3e38))  # type: ignore[arg-type]


def test_generated_text_is_the_streams_and_the_same_again(trained: Trained) -> None:
    prompt = torch.tensor([0, 1, 4])
    model = specialise(trained, prompt).model

    def text(temperature: float, seed: int = 0, count: int = 8) -> list[int]:
        return generate(replace(trained, seed=seed), model, prompt, count, None, temperature)

    greedy = text(0.0)
    whole = model(torch.tensor([greedy]))
    assert whole.argmax(-1)[0].tolist() == greedy
    assert text(1e-320) == greedy, "so cold that it would divide by 0"
    assert text(1.0) == text(1.0)
    assert len({tuple(text(1.0, seed)) for seed in range(5)}) > 1
    with pytest.raises(UserError, match="positions this model has learned"):
        text(1.0, count=100)
    assert stream_bytes(model, torch.tensor([greedy])) == 4 * 2 * 3 * 16 * 8


def test_each_seed_has_a_file_of_its_own(run_folder: Path, prompt_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    base = ["specialize", str(folder), "--prompt", str(prompt_file)]
    assert cli.main(base) == 0
    first = (folder / "specialised.safetensors").read_bytes()
    assert cli.main([*base, "--seed", "4"]) == 0
    assert (folder / "specialised.safetensors").read_bytes() == first
    assert (folder / "specialised-seed-4.safetensors").read_bytes() != first


@pytest.mark.ci
def test_where_only_answers_are_trained_generation_says_so(
    run_folder: Path,
    text_run: Path,
    trained: Trained,
    prompt_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    validation = trained.track.instances("validation")
    share = validation.scored.sum() / validation.lengths.sum()
    assert share < 1
    out = ["--out", str(tmp_path / "x.safetensors"), "--generate", "3"]
    assert cli.main(["specialize", str(run_folder), "--prompt", str(prompt_file), *out]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == (
        f"tiny-v1 trains the prediction of only {share:.0%} of its tokens; the other generated tokens are noise"
    )
    (tmp_path / "words.txt").write_text("Ġword1 part3")
    own = ["--track", yaml.safe_load((text_run / "config.yaml").read_text())["track"]]  # its task is a file
    assert cli.main(["specialize", str(text_run), "--prompt", str(tmp_path / "words.txt"), *own, *out]) == 0
    assert "noise" not in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--moving-average", "0.1"], ["--temperature", "0"]])
def test_the_command_generates(
    run_folder: Path, prompt_file: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["specialize", str(run_folder), "--prompt", str(prompt_file), "--out", str(tmp_path / "x.safetensors")]
    assert cli.main([*base, "--generate", "9", *more]) == 0
    last = capsys.readouterr().out.rstrip("\n").rpartition("\n")[2]
    assert len(last) == 9
    assert set(last) <= set("abcd|")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--moving-average", "0.1"], "--moving-average is for generated text: give --generate too"),
        (["--temperature", "0.5"], "--temperature is for generated text: give --generate too"),
        (["--generate", "3", "--moving-average", "1.5"], "--moving-average 1.5 is not above 0 and at most 1"),
        (
            ["--generate", "3", "--temperature", "-1"],
            "--temperature -1 is not 0, the most likely, or a number above it",
        ),
        (["--generate", "3", "--temperature", "nan"], "--temperature nan is not 0"),
        (["--generate", "3", "--temperature", "inf"], "--temperature inf is not 0"),
        (["--generate", "-1"], "--generate -1 is not a number of tokens: 1 or more"),
        (["--generate", "0"], "--generate 0 is not a number of tokens: 1 or more"),
        (["--out", "/dev/null/x.safetensors"], "cannot write /dev/null: a file is there, where a folder should be"),
        (["--prompt", "nowhere.txt"], "cannot read the prompt nowhere.txt: No such file"),
        (
            ["--prompt", "empty.txt"],
            "the prompt empty.txt is empty: write there what the model is to be specialised to",
        ),
        (["--prompt", "strange.txt"], "strange.txt: 'z', number 3, is no token of the task; known: a, b, c, d, |"),
        (
            ["--prompt", "long.txt"],
            "a prompt of 200 tokens leaves no room for a text: the model reads 26 tokens at most",
        ),
    ],
)
def test_wrong_arguments(
    run_folder: Path,
    prompt_file: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(prompt_file.parent)
    for name, text in (("empty.txt", " \n"), ("strange.txt", "ab z"), ("long.txt", 200 * "a")):
        Path(name).write_text(text)
    refused(capsys, ["specialize", str(run_folder), "--prompt", str(prompt_file), *arguments], message)
    assert not (run_folder / "specialised.safetensors").exists()


def test_prompts_are_read_by_the_names_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("ab |\nb")
    assert read_prompt(path, LETTERS).tolist() == [0, 1, 2, 1]
    path.write_text("two one\n| two")
    assert read_prompt(path, WORDS).tolist() == [1, 0, 2, 1]
    assert write_tokens([1, 0, 2], WORDS) == "two one |"
    assert write_tokens([1, 0, 2], LETTERS) == "ba|"
    many = SimpleNamespace(io=TokenIO(501, 500, 9, (*(f"token{i}" for i in range(500)), "|")))
    for text, message in (
        ("token7 tokn77", "'tokn77', number 2, is no token of the task; did you mean 'token77'?"),
        ("zzz", "'zzz', number 1, is no token of the task$"),  # of so many none is listed
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_prompt(path, many)
    path.write_text("1 2 0.5\n\n3, 4, 5\n")
    task = SimpleNamespace(io=VectorIO(d_in=3, d_out=1, max_length=4))
    assert read_prompt(path, task).tolist() == [[1.0, 2.0, 0.5], [3.0, 4.0, 5.0]]
    for text, message in (
        ("1 2", "vector 1 is not 3 finite"),
        ("1 2 3\n1 x 3", "vector 2 is not made of numbers"),
        ("0 0 1e39", "vector 1 is not 3 finite numbers of at most 3e38"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_prompt(path, task)


def test_prompts_of_text_are_read_as_their_task_reads_text(tmp_path: Path) -> None:
    class Letters:
        io = WORDS.io

        def encode(self, text: str) -> np.ndarray:
            return np.array([ord(letter) for letter in text], np.int64)

        def decode(self, tokens: np.ndarray) -> str:
            return "".join(map(chr, tokens))

    path = tmp_path / "p.txt"
    path.write_text("To be,\nor\n")
    tokens = read_prompt(path, Letters())
    assert tokens.tolist() == [ord(letter) for letter in "To be,\nor"]
    assert write_tokens(tokens.tolist(), Letters()) == "To be,\nor"


def test_files_that_are_no_specialised_model(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="holds no specialised model"):
        load_specialised(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        load_specialised(path)
