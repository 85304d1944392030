"""A tiny transformer in float64, for tests that leave no room for rounding, run on forests or rows.

Not here: models of transformers.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from katgym_kernels import TreePlan, tree_attention
from katgym_trainer import Head, PackedForest, TreeContext
from katgym_trainer.packing.forest_parts import ForestPart

HEADS, SIZE = 2, 8


class TinyModel(nn.Module):
    """Two layers of attention with rotary positions and a gated MLP; the head is tied."""

    def __init__(self, vocabulary: int = 13, num_layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        width = HEADS * SIZE

        def matrix(*shape: int) -> nn.Parameter:
            values = torch.randn(*shape, generator=rng, dtype=torch.float64)
            return nn.Parameter(values * 0.4)

        self.embedding = matrix(vocabulary, width)
        self.layers = nn.ParameterList(
            [matrix(3 * width, width) for _ in range(num_layers)]
            + [matrix(width, width) for _ in range(num_layers)]
            + [matrix(width, width) for _ in range(2 * num_layers)]
        )
        self.num_layers = num_layers

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def head(self) -> Head:
        return Head(weight_VD=self.embedding)

    def prepare(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def hidden(self, forest: PackedForest | ForestPart, context: TreeContext) -> Tensor:
        return self.run(forest.input_ids, forest.position_ids, context)

    def run(self, ids: Tensor, positions: Tensor, context: TreeContext | None) -> Tensor:
        """Return hidden states; without a context every token sees all before it."""
        x = self.embedding[ids]
        angles = positions[:, None].double() * torch.tensor([1.0, 0.1, 0.01, 0.001])
        turn = torch.polar(torch.ones_like(angles), angles)
        for i in range(self.num_layers):
            qkv = (x @ self.layers[i].T).view(len(ids), 3, HEADS, SIZE).permute(1, 2, 0, 3)
            q, k = (torch.view_as_real(_complex(t) * turn).flatten(-2) for t in qkv[:2])
            if context is None:
                plan = TreePlan.build([len(ids)] * len(ids))
                out = tree_attention(q, k, qkv[2], plan, backend="reference")
            else:
                out = context.attend(q, k, qkv[2], layer=i, scale=None)
            x = x + out.transpose(0, 1).flatten(1) @ self.layers[self.num_layers + i].T
            up, gate = self.layers[2 * self.num_layers + i], self.layers[3 * self.num_layers + i]
            x = x + torch.tanh(x @ up.T) * torch.sigmoid(x @ gate.T)
        return x


def _complex(values: Tensor) -> Tensor:
    return torch.view_as_complex(values.reshape(*values.shape[:-1], -1, 2).contiguous())
