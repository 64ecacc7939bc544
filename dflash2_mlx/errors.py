"""Every error the library raises on purpose.

Dflash2Error
├── ConfigError            a setting or a `config.json` value is missing, unknown or out of range
│   └── SettingError       the caller's setting does not suit this model
├── CheckpointError        a checkpoint's files are missing, cut short or hold the wrong tensors
│   └── LicenceError       a checkpoint's licence forbids what was asked for
├── PairError              this drafter does not belong to this target
├── UnsupportedModelError  the target's family has no adapter
├── PromptError            the prompt is empty, malformed or longer than the model's context
├── LogitsError            the target's own numbers are not finite: no token can be chosen by them
├── TrainingError          a training run cannot go on: its loss is no number any more
└── ConstraintError        a `LogitConstraint` broke its contract

Each message is one line that names the field, what was received and what was expected.
"""


class Dflash2Error(Exception):
    """Base of all errors raised on purpose by dflash2_mlx."""


class ConfigError(Dflash2Error, ValueError):
    """A setting or config value is missing, unknown or out of range."""


class SettingError(ConfigError):
    """A setting the caller chose is possible, but not with this model."""


class CheckpointError(Dflash2Error):
    """A checkpoint cannot be read as what it claims to be."""


class LicenceError(CheckpointError):
    """The checkpoint's licence forbids what the caller wants to do with it."""


class PairError(Dflash2Error):
    """The drafter does not fit the target."""


class UnsupportedModelError(Dflash2Error):
    """No target adapter for this model family."""


class PromptError(Dflash2Error, ValueError):
    """The prompt cannot be used."""


class ConstraintError(Dflash2Error):
    """A LogitConstraint returned something unusable."""


class LogitsError(Dflash2Error):
    """The target's logits are not finite, so that no token can be chosen by them.

    Args:
        model: which one, for people.
        precision: the dtype in which it computed them.
    """

    def __init__(self, model: str, precision: object):
        self.precision = str(precision).rsplit(".", 1)[-1]
        super().__init__(
            f"logits: got numbers that are not finite from {model} in {self.precision}, expected finite ones: its "
            "weights are damaged, or overflow in this precision"
        )


class TrainingError(Dflash2Error):
    """A training run cannot go on."""
