// Fetches the Prometheus operator's CRDs, which the chart's monitors are held against; nothing is built of it.
module lastmile/tools/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
