"""scikit-learn's own checks (`check_estimator`) that a private estimator must not pass, each with its reason.

All of them fit twice and want the same model. Noise that is secret makes another one of each fit; with noise held
fixed, as only tests can, all of them pass. The checks declare no public facts, so they are run on a subclass that does.
"""

from __future__ import annotations

_BECAUSE = "noise that could be repeated could be subtracted"

EXEMPT: dict[str, str] = {
    "check_fit_idempotent": f"a second fit on the same records has to give the same predictions; {_BECAUSE}",
    "check_supervised_y_2d": f"a fit on y as a column has to predict what one on a flat y does; {_BECAUSE}",
    "check_classifier_data_not_an_array": f"fits on a list and on an array have to predict the same; {_BECAUSE}",
    "check_regressor_data_not_an_array": f"fits on a list and on an array have to predict the same; {_BECAUSE}",
    "check_regressors_int": f"fits on whole numbers and on floats have to predict the same; {_BECAUSE}",
}
"""for `check_estimator(…, expected_failed_checks=EXEMPT)`"""
