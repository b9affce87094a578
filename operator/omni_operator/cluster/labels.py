"""Labels and annotations by which the operator finds what is its own."""

from __future__ import annotations

MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "diffusionrl-operator"
JOB = "diffusionrl.io/job"
JOB_UID = "diffusionrl.io/job-uid"
ATTEMPT = "diffusionrl.io/attempt"
DIGEST = "diffusionrl.io/digest"
FINALIZER = "diffusionrl.io/finalizer"
SELECTOR = f"{MANAGED_BY}={OPERATOR}"
