"""The Kubernetes operator: turns DatasetExperiments into Ray clusters that train."""
