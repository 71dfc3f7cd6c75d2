"""What depth does to scale: pure functions of depth and position, no torch."""

from kilolayer.schemes.admin import admin_skip_scales
from kilolayer.schemes.coefficients import Coefficients, StackCoefficients, UpdateSum, coefficients
from kilolayer.schemes.depth import STACKS, Depth, Stack
from kilolayer.schemes.registry import RULE_NAMES, SCHEMES, get_scheme
from kilolayer.schemes.scales import ROLES, BranchScales, Role
from kilolayer.schemes.scheme import Profile, Scheme
from kilolayer.schemes.stream import log_stream_variances

__all__ = [
    "ROLES",
    "RULE_NAMES",
    "SCHEMES",
    "STACKS",
    "BranchScales",
    "Coefficients",
    "Depth",
    "Profile",
    "Role",
    "Scheme",
    "Stack",
    "StackCoefficients",
    "UpdateSum",
    "admin_skip_scales",
    "coefficients",
    "get_scheme",
    "log_stream_variances",
]
