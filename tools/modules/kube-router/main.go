// Enforces NetworkPolicies on the full node: kube-router's policy controller and nothing else of it,
// by upstream's own options. Routes, IPVS and a cloud's SDK are most of upstream's compiling.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/svcip"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	login, err := clientcmd.BuildConfigFromFlags(config.Master, config.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(login)
	if err != nil {
		return err
	}
	forever := make(chan struct{})
	if err := enforce(config, client, forever); err != nil {
		return err
	}
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	return http.ListenAndServe(net.JoinHostPort(config.HealthAddr, strconv.Itoa(int(config.HealthPort))), nil)
}

func enforce(config *options.KubeRouterConfig, client kubernetes.Interface, stop <-chan struct{}) error {
	ranges, err := svcip.NewValidator(svcip.Config{
		ClusterIPCIDRs: config.ClusterIPCIDRs,
		EnableIPv4:     config.EnableIPv4,
		EnableIPv6:     config.EnableIPv6,
	})
	if err != nil {
		return err
	}
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, nil, tables, sets, ranges)
	if err != nil {
		return err
	}
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats { // nobody waits for them here
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, stop, &running)
	return nil
}
