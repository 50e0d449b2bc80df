"""verl's overrides: ``actor_rollout_ref.actor.strategy=fsdp``, and FSDP settings without a strategy.

Which key counts was measured on verl 0.7.1, 0.9.0 and its development head: the role's own `strategy` does, it is
copied over the one inside `fsdp_config` since 0.8, and where it is absent ``fsdp`` runs, which is FSDP1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .found import Found, unseen
from .shell import Word

_ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "reward_model")
_OUTCOME = "this release does not rewrite overrides"


def judge(words: Sequence[Word], *, whole: bool) -> Iterator[Found]:
    """Findings about the overrides among `words`; `whole`: they are a command with all it is given."""
    given: dict[str, tuple[Word, Word]] = {}
    for word in words:
        name, equals, _ = word.text.partition("=")
        key = name.lstrip("+~")
        if equals and key.startswith(("actor_rollout_ref.", "critic.", "reward_model.", "algorithm.")):
            given[key] = (word, word.part(len(name) + 1))
    for role in _ROLES:
        at, value = given.get(f"{role}.strategy", (None, None))
        if at is None or value is None:
            continue
        if value.opaque:
            yield unseen(at, f"{role}.strategy", "it says which FSDP runs")
        elif value.text == "fsdp":
            key = f"{role}.strategy"
            yield _fsdp1(at, key, f"`{key}=fsdp` asks for FSDP1", f"write `{key}=fsdp2` instead (verl 0.4 or newer)")
    if not whole or not _is_verl(words):
        return
    for role, condition in (("actor_rollout_ref.actor", True), ("critic", _uses_critic(given))):
        first = next((key for key in given if key.startswith(f"{role}.") and ".fsdp_config." in key), "")
        if not first or not condition or f"{role}.strategy" in given:
            continue
        blind = next((word for word in words if _may_say_more(word)), None)
        at = given[first][0]
        if blind is not None:
            yield unseen(blind, first, "it may say which FSDP runs")
            return
        nested = given.get(f"{role}.fsdp_config.strategy")
        said = f"without `{role}.strategy` verl runs FSDP1, its default"
        if nested is not None:
            at, first = nested[0], f"{role}.fsdp_config.strategy"
            said = f"`{first}` is overwritten in verl 0.8 and newer: {said}"
        yield _fsdp1(at, first, said, f"add `{role}.strategy=fsdp2` (verl 0.4 or newer)")


def _fsdp1(at: Word, key: str, said: str, hint: str) -> Found:
    return Found("FM520", at, key, {"said": said, "outcome": _OUTCOME, "hint": hint})


def _is_verl(words: Sequence[Word]) -> bool:
    """Whether one of verl's own programs is called, with its own defaults."""
    return any(word.text.startswith("verl.trainer.main_ppo") for word in words) and not any(
        word.text.startswith(("--config-name", "--config-path", "--config-dir", "-cn", "-cp")) for word in words
    )


def _uses_critic(given: dict[str, tuple[Word, Word]]) -> bool:
    at = given.get("algorithm.adv_estimator")
    return at is not None and at[1].text.strip("'\"") == "gae"


def _may_say_more(word: Word) -> bool:
    """Whether an expansion can hold overrides; arguments of the script itself are not looked for."""
    if not word.opaque or "=" in word.text.partition("$")[0]:
        return False
    return word.text.strip() not in ("$@", "$*", "${@}", "${*}") and word.pieces[0].opaque | (word.pieces[0].text == "")
