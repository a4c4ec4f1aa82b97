"""The checks of pod templates, and of whole pods against a level of Kubernetes."""
