"""Recurrent layers under the names that Opacus gives them: torch's own, of which layer rules know every record's part.

They are the same classes, not subclasses: a subclass could compute something else, so no rule is taken for one.
"""

from torch import nn

DPRNN = nn.RNN
DPGRU = nn.GRU
DPLSTM = nn.LSTM
