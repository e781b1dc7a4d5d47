"""`adadpigu calibrate` (σ for a budget) and `adadpigu account` (ε for a σ). No data is involved."""

from dataclasses import asdict
from typing import Annotated

import typer

from adadpigu.accounting import calibrate as find_noise
from adadpigu.accounting import epsilons, plan_for
from adadpigu.accounting.closed_forms import dpsgd_theorem_sigma
from adadpigu.accounting.journal import strict_json
from adadpigu.accounting.membership import membership_bounds
from adadpigu.accounting.plan import Plan
from adadpigu.accounting.wording import percent
from adadpigu.cli.commands import Json
from adadpigu.console import notes, number, print_json, print_line, screen, search_progress, table

Rate = Annotated[float, typer.Option("--sample-rate", "-q", help="q = B/N, the chance of a record to be in a batch.")]
Steps = Annotated[int, typer.Option("--steps", "-T", help="Number of steps, all stages together.")]
Delta = Annotated[float, typer.Option("--delta", help="δ of the guarantee.")]

_NAMES = {
    "pld": "privacy loss distribution (tight; the one we claim)",
    "rdp": "Rényi DP, improved conversion",
    "rdp_classic": "Rényi DP, classic conversion (the paper's)",
}


def account(
    noise_multiplier: Annotated[float, typer.Option("--noise-multiplier", "-s", help="σ, noise over sensitivity.")],
    sample_rate: Rate,
    steps: Steps,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """Tells the ε of a noise multiplier, by every accountant. And the most that a guess about one record can gain.

    For Poisson sampling, and adding or removing a record.
    """
    event = plan_for(sample_rate, steps)(noise_multiplier).event()
    with search_progress(notes(), "adding up the steps"):
        found, guesses = epsilons(event, delta), membership_bounds(event)
    if as_json:
        asked = {"delta": delta, "noise_multiplier": noise_multiplier, "steps": steps}
        print_json(strict_json({**found, **asked, **asdict(guesses)}))
        return
    screen().print(table(["ε", "accountant"], [[number(found[key], 6), name] for key, name in _NAMES.items()]))
    toss, advantage = percent(guesses.best_accuracy["0.5"]), percent(guesses.advantage)
    print_line("\nright guesses whether a record was used, from a coin toss: at most")
    print_line(f"{toss}, advantage {advantage} (without the model 50 %, 0)\n")
    rows = [
        [percent(float(rate)), percent(share), *map(percent, guesses.precision[rate].values())]
        for rate, share in guesses.true_positive_rates.items()
    ]
    head = ["false positives", "true positives, at most", "precision, if 1 in 2 was used", "1 in 100", "1 in 10,000"]
    screen().print(table(head, rows))


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε that must not be exceeded.")],
    sample_rate: Rate,
    steps: Steps,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """Finds the least noise multiplier that keeps a budget. Shows the paper's closed form beside it."""
    plan_at = plan_for(sample_rate, steps)
    with search_progress(notes(), "looking for σ") as report:

        def reported_plan(sigma: float) -> Plan:
            report(f"looking for σ: {number(sigma)} tried")
            return plan_at(sigma)

        found = find_noise(reported_plan, epsilon=epsilon, delta=delta)
        report("ε of the closed form")
        closed = dpsgd_theorem_sigma(epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps)
        claimed = epsilons(plan_at(closed).event(), delta)["pld"]
    if as_json:
        told = {"noise_multiplier": found.noise_multiplier, "epsilon": found.epsilon, "delta": delta}
        print_json(strict_json({**told, "closed_form": closed, "closed_form_epsilon": claimed}))
        return
    asymptotic = "the paper's closed form 2q√(T ln(1/δ))/ε: an asymptotic bound, no guarantee"
    rows = [
        [number(found.noise_multiplier, 6), number(found.epsilon, 6), "calibrated by PLD: this is the guarantee"],
        [number(closed, 6), number(claimed, 6), asymptotic],
    ]
    screen().print(table(["σ", "ε by PLD", "how"], rows))
