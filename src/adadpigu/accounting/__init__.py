"""What a run costs in privacy: events, plans, accountants, calibration, the ledger, the statement.

Nothing in here sees a record. `dp_accounting` is imported where it is used, since it alone takes over a second.
"""

from adadpigu.accounting.accountants import epsilon, epsilon_curve, epsilons
from adadpigu.accounting.calibration import Calibration, calibrate
from adadpigu.accounting.events import draw_event, event_from_json, event_to_json
from adadpigu.accounting.ledger import Ledger
from adadpigu.accounting.ledger_reading import LedgerRecord, read_ledger
from adadpigu.accounting.plan import Budget, Plan, PlannedDraw, PlannedStage, plan_for
from adadpigu.accounting.shared import create_shared
from adadpigu.accounting.statement import PrivacyReport, delta_warnings, library_versions, privacy_report

__all__ = [
    "Budget",
    "Calibration",
    "Ledger",
    "LedgerRecord",
    "Plan",
    "PlannedDraw",
    "PlannedStage",
    "PrivacyReport",
    "calibrate",
    "create_shared",
    "delta_warnings",
    "draw_event",
    "epsilon",
    "epsilon_curve",
    "epsilons",
    "event_from_json",
    "event_to_json",
    "library_versions",
    "plan_for",
    "privacy_report",
    "read_ledger",
]
