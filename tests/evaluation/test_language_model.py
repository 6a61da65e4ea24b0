"""Language models of `transformers`, small and made on the spot, on a track of symbols."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regbench
from regbench import cli, runner
from regbench.evaluation.language_model import LanguageModel, Prompting
from regbench.results import Result, read_result
from regbench.tracks import Track
from regbench.utils.errors import UserError
from tests.helpers.language_models import LETTERS, SIZES, random_model, saved, sentencepiece

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model("GPT2", tmp_path_factory.mktemp("gpt2"))


def scored(track: str, name: str, **settings: Any) -> Result:
    return runner.evaluate_language_model(track, name, "validation", settings=settings, device="cpu")


@pytest.mark.parametrize("family", ["Llama", "Mamba"])
def test_families_are_scored(family: str, tiny_file: Path, tmp_path: Path) -> None:
    """Random weights give all 290 tokens about the same probability, so that the symbols have little of it."""
    result = scored(str(tiny_file), random_model(family, tmp_path), mappings=(0, 1), limit=6)
    assert [seed.seed for seed in result.seeds] == [0, 1]
    assert result.seeds[0].scores["nll"].value != result.seeds[1].scores["nll"].value
    assert result.evaluation is not None
    assert result.evaluation.outside is not None
    assert all(0.9 < outside < 1 - 4 / 290 for outside in result.evaluation.outside.values())
    assert result.architecture.source == f"{family}ForCausalLM"


def test_a_limit_above_the_split_is_no_limit(tiny: Track, tiny_file: Path, gpt2: str) -> None:
    """Else tables would tell more instances than there are, and a comparison would refuse the run as a part of them."""
    size = len(tiny.instances("validation"))
    for limit, kept in ((size - 1, size - 1), (size, None), (size + 1, None)):
        result = scored(str(tiny_file), gpt2, mappings=(0,), limit=limit)
        assert result.evaluation is not None
        assert (result.evaluation.limit, result.architecture.options["limit"]) == (kept, kept)


class CountingConfig(transformers.PretrainedConfig):  # type: ignore[misc, name-defined]
    model_type = "regbench_counting"


class Counting(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
    """How often each token occurred so far, plus a tenth: a unigram model of the prompt, with a share for all others."""

    config_class = CountingConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.post_init()

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        counts = torch.nn.functional.one_hot(input_ids, self.config.vocab_size).cumsum(1)
        return SimpleNamespace(logits=(counts + 0.1).log())


def test_a_model_built_to_count_has_the_scores_of_counting(tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    """Whatever letters stand for the symbols. What is left to other tokens is (V' - V) tenths of all counts."""
    transformers.AutoConfig.register("regbench_counting", CountingConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(CountingConfig, Counting, exist_ok=True)
    name = saved(Counting(CountingConfig(vocab_size=290)), tmp_path / "counting")
    result = scored(str(tiny_file), name, mappings=(0, 5))
    width = tiny.task.io.vocab_size

    def counting(tokens: Tensor) -> Tensor:
        return (torch.nn.functional.one_hot(tokens, width).cumsum(1) + 0.1).log()

    known = regbench.evaluate(tiny, counting, "next", "logits", split="validation").seeds[0]
    for seed in result.seeds:
        assert seed.scores == known.scores
    validation = tiny.instances("validation")
    # Behind the first token, a new line, and before position t there are t + 2 tokens: the start of the text is one of them.
    shares = [(0.1 * (290 - width) + 1) / (t + 2 + 29) for row in validation.scored for t in np.flatnonzero(row)]
    assert result.evaluation is not None
    assert result.evaluation.outside == pytest.approx(dict.fromkeys("05", np.mean(shares)), abs=1e-4)


def test_a_mapping_is_of_single_tokens_and_drawn_by_its_seed(gpt2: str, tiny: Track) -> None:
    model = LanguageModel(gpt2.removeprefix("hf:"), Prompting(), torch.device("cpu"))
    texts = {model.tokenizer.decode([token]) for token in model.candidates("letters")}
    assert texts == {f" {letter}" for letter in LETTERS}
    assert [model.tokenizer.decode([token]) for token in model.candidates("words")] == []  # " over" begins every text
    first, other = model.mappings(tiny.task.io, "auto", (0, 1)).values()
    again = model.mappings(tiny.task.io, "auto", (0,))[0]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(set(first)) == tiny.task.io.vocab_size
    assert model.tokenizer.decode([first[tiny.task.io.separator]]) == "\n"


def test_a_tokenizer_that_adds_a_space_at_the_start(tiny: Track, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(vocab_size=3 + 256 + 1 + 52, **SIZES["Llama"])
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    sentencepiece().save_pretrained(tmp_path)
    model = LanguageModel(str(tmp_path), Prompting(), torch.device("cpu"))
    found = model.tokenizer.convert_ids_to_tokens(model.candidates("letters").tolist())
    assert sorted(found) == [f"▁{letter}" for letter in LETTERS]
    mapping = model.mappings(tiny.task.io, "auto", (0,))[0]
    assert model.tokenizer.convert_ids_to_tokens(int(mapping[tiny.task.io.separator])) == "<0x0A>"
    text = model.tokenizer.decode(mapping[[0, 1, 2]].tolist())
    assert model.tokenizer(text, add_special_tokens=False).input_ids == mapping[[0, 1, 2]].tolist(), "as in a text"


def test_a_model_that_also_reads_images(tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    """The sizes of its text part are in a configuration of their own."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = transformers.Gemma3TextConfig(
        vocab_size=290, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, **small
    )
    vision = transformers.SiglipVisionConfig(image_size=28, patch_size=14, **small)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    name = saved(transformers.Gemma3ForConditionalGeneration(config), tmp_path)
    assert scored(str(tiny_file), name, mappings=(0,), limit=4).seeds[0].scores["nll"].value > 0
    model = LanguageModel(str(tmp_path), Prompting(), torch.device("cpu"))
    with pytest.raises(UserError, match="and the model reads 64"):
        model.require_room(64)


def test_the_command_prints_and_keeps(
    gpt2: str, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In half precision, with a prompt. The folder is one that `report` and `compare` read."""
    out = tmp_path / "out"
    settings = ["--precision", "bfloat16", "--prompt", "a b", "--limit", "8", "--mapping", "0", "--device", "cpu"]
    assert cli.main(["evaluate", gpt2, "--track", str(tiny_file), *settings, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "GPT2LMHeadModel" in said
    assert "1 mapping of symbols to tokens" in said
    result = read_result(out)
    assert result.architecture.options["prompt"] == '"a b"'
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2.removeprefix("hf:")).backend_tokenizer.to_str()
    assert result.architecture.options["tokenizer_sha256"] == hashlib.sha256(tokenizer.encode()).hexdigest()
    assert result.environment.precision == "bfloat16"
    assert (out / "seed-0" / "predictions.npz").exists()
    assert "A language model scored as it was given" in (out / "report.html").read_text()
    assert cli.main(["compare", str(out), "3-gram", "--track", str(tiny_file)]) == 2
    assert "has 8 instances; a comparison is on all of the test split" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["gpt2"], "a language model is given as hf:NAME or hf:DIR, not 'gpt2'; did you mean 'hf:gpt2'?"),
        (["hf:/nowhere/at/all"], "the language model /nowhere/at/all cannot be loaded: there is no such folder"),
        (["MODEL", "--separator", "ab"], "the separator 'ab' is 2 tokens of this model, not one: give another one"),
        (["MODEL", "--symbols", "words"], "the task has 4 symbols, and the model's single tokens are 0 words"),
        (["MODEL", "--symbols", "wrds"], "did you mean 'words'?"),
        (["MODEL", "--limit", "1"], "limit"),
        (["MODEL", "--mapping", "-1"], "mapping"),
        (["MODEL", "--prompt", "a" * 60], "an instance is "),
        (["MODEL", "--prompt", "é" * 334], "prompt: it has 2,006 characters in JSON, and a result holds 2,000"),
        (["MODEL", "--revision", "a\nb"], "language model: a string with characters that are not printable"),
        (["MODEL", "--track", "linear-regression-small-v1"], "linear-regression-small-v1 is of vectors"),
    ],
)
def test_bad_input_is_one_line(
    given: list[str],
    message: str,
    gpt2: str,
    tiny_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    track = [] if "--track" in given else ["--track", str(tiny_file)]
    words = [gpt2 if word == "MODEL" else word for word in given]
    assert cli.main(["evaluate", *words, *track, "--device", "cpu"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error


@pytest.mark.ci
def test_the_longest_prompt_makes_a_result_that_can_be_read(tiny_file: Path, tmp_path: Path) -> None:
    name, out = random_model("Llama", tmp_path / "llama"), tmp_path / "out"
    settings = {"mappings": (0,), "limit": 2, "prompt": 'a "b"\n' * 222}
    runner.evaluate_language_model(str(tiny_file), name, settings=settings, device="cpu", out=out)
    assert len(read_result(out).architecture.options["prompt"]) == 2000


def test_weights_that_are_missing_or_damaged_are_not_drawn_at_random(
    gpt2: str, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path(gpt2.removeprefix("hf:"))
    for name in ("lacking", "cut"):
        shutil.copytree(whole, tmp_path / name)
    weights = load_file(whole / "model.safetensors")
    gone = next(name for name in weights if name.endswith("c_attn.weight"))
    kept = {key: value for key, value in weights.items() if key != gone}
    save_file(kept, tmp_path / "lacking" / "model.safetensors", {"format": "pt"})
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    for name, message in {"lacking": f"lacks 1 of its weights, such as {gone}", "cut": "cannot be loaded: "}.items():
        said = ["evaluate", f"hf:{tmp_path / name}", "--track", str(tiny_file), "--device", "cpu"]
        assert cli.main(said) == 2
        error = capsys.readouterr().err
        assert message in error.splitlines()[-1]
        assert "Traceback" not in error


def test_without_network_one_question_is_asked_and_one_line_printed(
    tiny_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def model_info(self: object, name: str, **_: Any) -> None:
        asked.append(name)
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    assert cli.main(["evaluate", "hf:nobody/no-such-model", "--track", str(tiny_file), "--device", "cpu"]) == 2
    _, error = capfd.readouterr().err.splitlines()  # "loading", and the one line
    assert "nobody/no-such-model cannot be loaded: it was never downloaded, and the Hugging Face Hub cannot be" in error
    assert asked == ["nobody/no-such-model"]
