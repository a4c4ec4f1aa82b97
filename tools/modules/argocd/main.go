// Those of Argo CD's programs that sync applications, each called by its name as upstream's own
// main has it; the API server, the CLI and the others are left out: half of the compiling.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	applicationset "github.com/argoproj/argo-cd/v3/cmd/argocd-applicationset-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/spf13/cobra"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"argocd-application-controller":    controller.NewCommand,
		"argocd-applicationset-controller": applicationset.NewCommand,
		"argocd-repo-server":               reposerver.NewCommand,
	}
	build, known := programs[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown program", os.Args[0])
		os.Exit(2)
	}
	if build().Execute() != nil {
		os.Exit(1)
	}
}
