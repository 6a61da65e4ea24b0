"""A tour of regbench as a marimo notebook: `marimo edit examples/tour.py`, or `python examples/tour.py` without a browser."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="A tour of regbench")


@app.cell
def _():
    import marimo as mo
    import matplotlib.pyplot as plt
    import torch

    import regbench

    given = mo.cli_args()  # python examples/tour.py -- --track T --tokens N --picture FILE.png
    return given, mo, plt, regbench, torch


@app.cell
def _(given, mo, regbench):
    track = regbench.load_track(str(given.get("track", "pfa-small-v1")))
    mo.md(f"# A tour of regbench\n\nA **track** is a task with frozen instances and a budget.\n\n```\n{track}\n```")
    return (track,)


@app.cell
def _(mo, track):
    test = track.instances("test")
    first = test[0]
    symbols = " ".join(track.task.io.names[token] for token in first["tokens"][:60])
    mo.md(
        f"""
        ## An instance

        Each of the {len(test):,} test instances has a language of its own. A model sees some of its strings and must go on.
        The first {min(60, first["length"])} of {first["length"]} tokens of the first instance:

        ```
        {symbols}
        ```
        """
    )
    return


@app.cell
def _(mo):
    mo.md(
        """
        ## A mixer

        A mixer maps (B, L, D) to (B, L, D), and reads nothing that comes later. This one keeps a decaying sum of the past in each
        channel, and gates it. regbench puts the rest of a model around it.
        """
    )
    return


@app.cell
def _(regbench, torch):
    class Decay(regbench.Mixer):
        """Each channel keeps a sum of its past that decays at a rate of its own."""

        def __init__(self, options):
            super().__init__(options)
            self.read, self.gate, self.out = (torch.nn.Linear(options.d_model, options.d_model) for _ in range(3))
            self.rate = torch.nn.Parameter(torch.linspace(-1.0, 4.0, options.d_model))

        def forward(self, x):
            steps = torch.arange(x.shape[1], device=x.device)
            apart = (steps[:, None] - steps)[..., None]  # (L, L, 1)
            weights = torch.sigmoid(self.rate).log().mul(apart.clamp(min=0)).exp() * (apart >= 0)  # (L, L, D)
            past = torch.einsum("tsd,bsd->btd", weights, self.read(x))
            return self.out(past * torch.nn.functional.silu(self.gate(x)))

    return (Decay,)


@app.cell
def _(Decay, given, mo, regbench, track):
    tokens = int(given.get("tokens", 400_000))  # the track's whole budget takes minutes more
    with mo.status.spinner("training", remove_on_exit=True):
        results = [
            regbench.run(str(given.get("track", track.name)), arch, settings={"training.train_tokens": tokens})
            for arch in (Decay, "lstm")
        ]
    results[0]
    return results, tokens


@app.cell
def _(mo, results, tokens):
    def row(name, score, how):
        return f"| {name} | {score.value:.3f} ± {score.stderr:.3f} | {how} |"

    main = results[0].track.main_score
    trained = [row(r.architecture.name, r.score(main), f"{tokens:,} tokens") for r in results]
    baselines = [row(name, b.scores[main], "no training") for name, b in results[0].baselines.items()]
    mo.md("\n".join([f"## {main}", "| predictor | score | |", "| --- | --- | --- |", *trained, *baselines]))
    return (main,)


@app.cell
def _(given, main, plt, results):
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for result in results:
        curve = result.seeds[0].curves[main]
        axes.plot(curve.position, curve.value, linewidth=2.5, label=result.architecture.name)
    for name, baseline in results[0].baselines.items():
        curve = baseline.curves[main]
        axes.plot(curve.position, curve.value, linewidth=1, linestyle="--", label=name)
    axes.set(xlabel="position in the context", ylabel=main, title="Who learns more from a longer prompt?")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    if "picture" in given:
        figure.savefig(str(given.get("picture")), dpi=110)
    figure
    return


@app.cell
def _(mo):
    mo.md(
        """
        ## Next

        `regbench run --arch my_mixer.py` trains with the whole budget. `regbench ls tracks` lists other tracks.
        `regbench submit` makes an entry of the leaderboard.
        """
    )
    return


if __name__ == "__main__":
    app.run()
