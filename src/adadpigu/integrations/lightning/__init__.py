"""PyTorch Lightning: an unmodified LightningModule is trained privately by the strategy of its Trainer.

from adadpigu.integrations.lightning import PrivateStrategy
strategy = PrivateStrategy(records=60_000, privacy=Budget(epsilon=4, delta=1e-5))
L.Trainer(strategy=strategy, max_epochs=30).fit(module, datamodule)
strategy.privacy.statement()
"""

from adadpigu.extras import import_extra

import_extra("lightning.pytorch", group="lightning", purpose="PrivateStrategy")

from adadpigu.integrations.lightning.strategy import PrivateStrategy  # noqa: E402

__all__ = ["PrivateStrategy"]
