"""What ``-m package`` runs."""

from package import tell  # noqa: F401
