// Programs that run in the containers of the full node, static and without dependencies.
module lastmile/tools/containers

go 1.25.0
