"""A card that is not there: whole training steps on tensors without values, counted."""
