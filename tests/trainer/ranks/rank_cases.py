"""What several ranks compute, beside what one process does: a script for torchrun.

    torchrun --nproc-per-node 2 rank_cases.py FOLDER [WORD ...]

One start runs every case, since starting torch costs seconds, so that this is one script of more
than 400 lines; WORD: of the names of cases, in place
of all. Writes FOLDER/found.json: relative errors by case, or what was raised. Not here: the bounds
(`test_train_ranks.py`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))
from tiny_families import make as make_family
from tiny_model import TinyModel
from tiny_qwen import VOCABULARY, tiny_qwen

from katgym_trainer import LOSSES, Row, Teacher, Trainer, forward_backward, loss, pack
from katgym_trainer.gradients.forward_backward import as_tree_model
from katgym_trainer.losses.objective import Coupling
from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.ranks.ranks import Ranks, whole
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.routing.row_routes import RowRoutes
from katgym_trainer.saving import model_files
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.served_weights import ServedModel

FAMILIES_ON_RANKS = ("Qwen3Next", "FalconH1", "NemotronH", "Mamba2", "Lfm2", "Jamba", "Qwen3Moe")
BUDGETS = {"packed": {"max_tokens": 60}, "parts": {"max_tokens": 16, "should_split": True}}
OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.1, "kl_estimator": "k3"},
    "dr_grpo": {"max_completion_tokens": 50},
}


def rows(seed: int = 3) -> list[Row]:
    """Return 4 groups of 4 rollouts, some of two rows, all behind one prompt; one is longer."""
    rng = random.Random(seed)

    def draw(num: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(num)]

    root, found = draw(6), []
    for group in range(4):
        base = root + draw(3)
        for number in range(4):
            own = base + draw(3)
            for _ in range(1 + (number == 2)):
                ids = own + draw(rng.randrange(3, 12 if group else 40))
                num = len(ids)
                found.append(
                    Row(
                        ids,
                        [0] * 9 + [1] * (num - 9),
                        [-3 - rng.random() for _ in ids],
                        rng.gauss(0, 1) if number % 2 else -0.5 + number,
                        weight=rng.choice([1.0, 0.5]),
                        group=group,
                        rollout=(group, number),
                        ref_logprobs=[-3 - rng.random() for _ in ids],
                        proximal_logprobs=[-3 - rng.random() for _ in ids],
                    )
                )
    return found


def routed_rows() -> list[Row]:
    """Return rows with routes to 2 of 4 experts in 2 layers, the same of the same prefix."""
    found = []
    for row in rows():
        ids, drawn = row.token_ids.tolist(), []
        for num in range(1, len(ids) + 1):
            rng = random.Random(str(ids[:num]))
            drawn.append([rng.sample(range(4), 2) for _ in range(2)])
        routes = RowRoutes(np.array(drawn, dtype=np.uint8), np.arange(len(ids)) % 5 > 0)
        found.append(row.replace(routes=routes))
    return found


def pairs() -> list[Row]:
    """Return groups of a chosen and a rejected row, as preferences need."""
    return [
        row.replace(advantages=(1.0, -1.0)[i % 2], group=i // 2, rollout=None, weight=1.0)
        for i, row in enumerate(rows()[:12])
    ]


def error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the relative distance of all tensors from what is wanted."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    apart = sum(float((found[n].double() - wanted[n].double()).pow(2).sum()) for n in wanted)
    return float((apart / sum(float(wanted[n].double().pow(2).sum()) for n in wanted)) ** 0.5)


def gradients(model: Any, times: float = 1.0) -> dict[str, Tensor]:
    """Return the gradients by name, whole."""
    return {n: whole(p.grad) * times for n, p in model.named_parameters() if p.grad is not None}


def weights(model: Any) -> dict[str, Tensor]:
    """Return a copy of what is trained, by name, whole."""
    named = model.named_parameters()
    return {n: whole(p.detach()).float().clone() for n, p in named if p.requires_grad}


def gradient_error(
    name: str, ranks: Ranks, make: Callable[[], Any], given: list[Row], budget: dict[str, Any]
) -> float:
    """Return how far the gradient of all ranks is from that of one process."""
    chosen = loss(name, **OPTIONS.get(name, {}))
    alone, model = make(), make()
    wanted = forward_backward(alone, pack(given, **budget), chosen)
    tree_model = as_tree_model(model, ranks=ranks)
    shares = Shares(ranks=ranks, cost=tree_model.cost)  # type: ignore[attr-defined]  # of a ShardedModel
    is_by_group = chosen.coupling is Coupling.GROUP
    forests = shares.pack(given, is_by_group=is_by_group, **budget)
    metrics = forward_backward(tree_model, forests, chosen, ranks=ranks)
    for key in ("loss", "entropy"):
        assert abs(metrics[key] - wanted[key]) <= 1e-5 * max(1, abs(wanted[key])), (key, metrics)
    assert metrics["num_trained"] == wanted["num_trained"]
    assert metrics.keys() == wanted.keys()
    return error(gradients(model, ranks.num), gradients(alone))


def trainer_error(
    ranks: Ranks,
    given: list[Row],
    name: str,
    args: dict[str, Any],
    make: Callable[[], Any] = tiny_qwen,
    *,
    has_teacher: bool = False,
) -> float:
    """Return how far the weights after three steps are from those of one process."""
    found, told = [], []
    for who in (ranks, Ranks()):
        is_apart = "kl_coef" in str(args) and not args.get("lora_rank")
        reference = tiny_qwen(seed=7) if is_apart else None
        trainer = Trainer(
            make(), name, reference=reference, ranks=who,
            teachers=[Teacher(model=tiny_qwen(seed=7))] if has_teacher else [],
            args={"learning_rate": 0.1, "epsilon": 1.0, "max_tokens": 60, **args},
        )  # fmt: skip
        before = weights(trainer.model)
        for _ in range(3):
            metrics = trainer.step_rows(given)
        found.append({n: w - before[n] for n, w in weights(trainer.model).items()})
        told.append(metrics)
        trainer.close()
    others = {"train/rank_balance", "train/logprob_hit_rate"}  # of ranks, of the first alone
    assert told[0].keys() - others == told[1].keys() - others, told
    for key in ("train/loss", "train/grad_norm", "train/num_trained_tokens", "train/num_rows"):
        assert abs(told[0][key] - told[1][key]) <= 1e-4 * max(1, abs(told[1][key])), (key, told)
    return error(*found)


def adapted() -> Any:
    """Return a model with adapters that do something."""
    model = add_adapters(tiny_qwen(), TrainerConfig(lora_rank=4))
    torch.manual_seed(5)
    for n, p in model.named_parameters():
        if "lora_B" in n:
            torch.nn.init.normal_(p, std=0.1)
    return model


class ListedExperts(torch.nn.Module):
    """Experts that are modules, as models of others than transformers have them."""

    def __init__(self, joined: Any) -> None:
        super().__init__()
        width = joined.down_proj.shape[-1]
        self.each = torch.nn.ModuleList()
        for gate_up, down in zip(joined.gate_up_proj, joined.down_proj, strict=True):
            expert = torch.nn.ModuleDict(
                {
                    "up": torch.nn.Linear(gate_up.shape[1], 2 * width, bias=False),
                    "down": torch.nn.Linear(width, down.shape[0], bias=False),
                }
            )
            expert["up"].weight, expert["down"].weight = (
                torch.nn.Parameter(w.detach().clone()) for w in (gate_up, down)
            )
            self.each.append(expert)

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        found = torch.zeros_like(hidden)
        for number, expert in enumerate(self.each):
            token, place = torch.where(index == number)
            if len(token):  # else it is not run, and gets no gradient
                gate, up = expert["up"](hidden[token]).chunk(2, -1)
                out = expert["down"](torch.nn.functional.silu(gate) * up)
                found = found.index_add(0, token, out * weights[token, place, None])
        return found


def listed_experts() -> Any:
    """Return a model of many experts, each a module: some get no token of some ranks."""
    model = make_family("Qwen3Moe", num_experts=12)
    for layer in model.model.layers:
        layer.mlp.experts = ListedExperts(layer.mlp.experts)
    return model


TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clipped": ("dapo", {"max_grad_norm": 0.01}),
    "reference": ("grpo", {"loss": {"kl_coef": 0.5}}),
    "adapters": ("grpo", {"loss": {"kl_coef": 0.5}, "lora_rank": 4}),
    "updates": ("dapo", {"num_updates": 2}),
    "activations": (
        "sft", {"should_checkpoint_activations": True, "max_tokens": 20, "should_split": True}
    ),
    "entropy": ("dapo", {"advantage_scaling": "entropy"}),
    "pruned": ("dapo", {"pruning": "best", "max_unique_tokens": 120}),
    "halves": ("sft", {"dtype": "bfloat16"}),
}  # fmt: skip


def trainer_of(ranks: Ranks, **args: Any) -> Trainer:
    """Return a trainer whose steps are those of any number of ranks."""
    args = {"learning_rate": 0.1, "epsilon": 1.0, "max_tokens": 60, **args}
    return Trainer(tiny_qwen(), "sft", args=args, ranks=ranks)


def checkpoints_error(ranks: Ranks, folder: Path, args: dict[str, Any]) -> float:
    """Return how far ranks are from one process, both a step after a checkpoint of each kind.

    The checkpoint of two ranks is read by four, where these run later.
    """
    name = f"lora-{args.get('lora_rank', 0)}"
    first = trainer_of(ranks, **args)
    for _ in range(2):
        first.step_rows(rows())
    own = folder / f"{name}-{ranks.num}"
    first.save_checkpoint(own, cursor={"n": 2}, max_checkpoints=1)
    first.step_rows(rows())
    again = trainer_of(ranks, **args)
    assert again.load_checkpoint(own) == {"n": 2} and again.num_steps == 2
    again.step_rows(rows())
    assert error(weights(again.model), weights(first.model)) == 0  # bit for bit
    alone = trainer_of(Ranks(), **args)
    alone.step_rows(rows())
    if ranks.is_first:
        alone.save_checkpoint(folder / f"{name}-alone-{ranks.num}")
    ranks.gather(None)
    worst = 0.0
    for path in sorted(folder.glob(f"{name}-*")):
        found = []
        for who in (ranks, Ranks()):
            trainer = trainer_of(who, **args)
            trainer.load_checkpoint(path)
            trainer.step_rows(rows())
            found.append(weights(trainer.model))
        worst = max(worst, error(*found))
    return worst


def models_error(ranks: Ranks, folder: Path, args: dict[str, Any]) -> float:
    """Return how far the model that ranks write is from that of one process."""
    found = []
    for who in (ranks, Ranks()):
        trainer = trainer_of(who, **args)
        for _ in range(2):
            trainer.step_rows(rows())
        path = folder / f"model-{args}-{who.num}-of-{ranks.num}"
        if who.num > 1 or ranks.is_first:
            trainer.save_pretrained(path)
        ranks.gather(None)
        model = transformers.AutoModelForCausalLM.from_pretrained(path)
        assert str(model.dtype) == "torch." + args.get("dtype", "float32")
        assert model.config.architectures == ["Qwen3ForCausalLM"]
        assert model.lm_head.weight is model.model.embed_tokens.weight
        found.append(weights(model))
    return error(*found)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a folder, as a server reads them."""
    index = folder / "model.safetensors.index.json"
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    if index.exists():  # a server looks at no others
        assert json.loads(index.read_text())["weight_map"].keys() == found.keys()
    return found


@contextlib.contextmanager
def counted_parts() -> Iterator[list[Path]]:
    """Yield a list that gets the files of weights which this process writes as one of several."""
    written: list[Path] = []
    write = model_files._write_parts

    def count(model: Any, kept: dict[Path, Any], dtype: torch.dtype) -> None:
        written.extend(kept)
        write(model, kept, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "_write_parts", count)
        yield written


def served_error(name: str, ranks: Ranks, folder: Path, make: Callable[[], Any]) -> float:
    """Return how far the weights and scores that ranks give servers are from one process's."""
    model, found = make(), []
    as_tree_model(model, ranks=ranks)  # shards it in place
    for who, given in ((ranks, model), (Ranks(), make())):
        served = ServedModel(given, ranks=who, dtype=torch.float32)
        path = folder / f"served-{name}-{who.num}-{ranks.num}"
        if who.num > 1 or ranks.is_first:
            path.mkdir(exist_ok=True)
            with counted_parts() as written:
                served.write(path)
            assert written or who.num != 2  # by every rank; four have too few layers
        ranks.gather(None)
        scored = {"scores": torch.tensor(served.scores([5, 6, 7, 8]))}
        if served.has_adapters and (who.num > 1 or ranks.is_first):
            served.write_adapter(path / "adapter")
        ranks.gather(None)
        scored |= tensors_of(path / "adapter")
        found.append({**tensors_of(path), **dict(served.weights()), **scored})
        is_several = (path / "model.safetensors.index.json").exists()
        assert is_several == (who.num > 1)
    return error(*found)


def refusals(ranks: Ranks) -> float:
    """Return 0 if every rank is told what ranks cannot do."""
    one, short = Row([1, 2, 3 + ranks.number], [0, 1, 1]), {"max_tokens": 40}
    for make, words in (
        (lambda: Trainer(tiny_qwen(seed=ranks.number), "sft", ranks=ranks), "other weights than"),
        (lambda: Trainer(tiny_qwen(), ranks=ranks, args={"optimizer": "muon"}), "Muon takes whole"),
        (lambda: Trainer(tiny_qwen(), ranks=ranks, args={"should_compile": True}), "compiled"),
        (lambda: Trainer(TinyModel(), ranks=ranks), "TreeModel of one's own"),
        (
            lambda: Trainer(tiny_qwen(), "sft", ranks=ranks).step_rows([one] * (1 + ranks.number)),
            "other rows",
        ),
        (
            lambda: Trainer(tiny_qwen(), "sft", ranks=ranks, args=short).step_rows(rows()),
            "the budget is 40|rank . failed: ValueError: row .* the budget is 40",
        ),
    ):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError), match=words):
            make()
    return 0.0


def cases(ranks: Ranks, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield every case by its name."""
    for kind, budget in BUDGETS.items():
        make = functools.partial(tiny_qwen, tie_word_embeddings=kind == "packed")
        for name in LOSSES:
            given = pairs() if name == "dpo" else rows()
            run = functools.partial(gradient_error, name, ranks, make, given, budget)
            yield f"gradient {name} {kind}", run
        run = functools.partial(gradient_error, "sft", ranks, adapted, rows(), budget)
        yield f"adapters {kind}", run
        run = functools.partial(gradient_error, "sft", ranks, tiny_qwen, rows()[:1], budget)
        yield f"one row {kind}", run
        for family in FAMILIES_ON_RANKS:
            make = functools.partial(make_family, family)
            run = functools.partial(gradient_error, "dapo", ranks, make, rows(), budget)
            yield f"family {family} {kind}", run
        experts = functools.partial(make_family, "Qwen3Moe")
        run = functools.partial(gradient_error, "dapo", ranks, experts, routed_rows(), budget)
        yield f"routes {kind}", run
        run = functools.partial(gradient_error, "dapo", ranks, listed_experts, rows(), budget)
        yield f"family of listed experts {kind}", run
    yield "refusals", lambda: refusals(ranks)
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "adapters": {"lora_rank": 2}}
    for name, args in kinds.items():
        yield f"checkpoints {name}", functools.partial(checkpoints_error, ranks, folder, args)
    for name, args in {**kinds, "halves": {"dtype": "bfloat16"}}.items():
        yield f"models {name}", functools.partial(models_error, ranks, folder, args)
    served = {
        "tied": tiny_qwen,
        "untied": functools.partial(tiny_qwen, tie_word_embeddings=False),
        "experts": functools.partial(make_family, "Qwen3Moe"),
        "hybrid": functools.partial(make_family, "Qwen3Next"),
        "adapters": adapted,
    }
    for name, make in served.items():
        yield f"served {name}", functools.partial(served_error, name, ranks, folder, make)
    for name, (algorithm, args) in TRAINERS.items():
        given = [r.replace(ref_logprobs=None) for r in rows()] if "kl_coef" in str(args) else rows()
        yield f"trainer {name}", functools.partial(trainer_error, ranks, given, algorithm, args)
    taught = functools.partial(trainer_error, ranks, rows(), "grpo", {}, has_teacher=True)
    yield "trainer teacher", taught
    again = {"should_checkpoint_activations": True, "max_tokens": 20, "should_split": True}
    for name, make in (
        ("hybrid", functools.partial(make_family, "Qwen3Next")), ("listed experts", listed_experts)
    ):  # fmt: skip
        run = functools.partial(trainer_error, ranks, rows(), "dapo", again, make)
        yield f"trainer {name}", run


def main() -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    wanted = sys.argv[2:]
    found: dict[str, Any] = {}
    with Ranks.join(timeout_s=600) as ranks:
        for name, run in cases(ranks, Path(sys.argv[1])):
            if wanted and not any(each in name for each in wanted):
                continue
            try:
                found[name] = run()
            except Exception as e:
                traceback.print_exc()
                found[name] = f"{type(e).__name__}: {e}"[:500]
        if ranks.is_first:
            (Path(sys.argv[1]) / "found.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
