// gpu-ami replica of NVIDIA's device plug-in for Kubernetes: a device a GPU that `nvidia-smi -L` lists, by UUID, and the
// environment variable by which the container runtime `nvidia` gives GPUs to a container (the original's strategy `envvar`).
// Source: github.com/NVIDIA/k8s-device-plugin (README, DEVICE_LIST_STRATEGY), read 2026-11-25. It does no health checks.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "nvidia-gpu.sock"
)

var uuid = regexp.MustCompile(`\(UUID: (GPU-[0-9A-Fa-f-]+)\)`)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		visible := strings.Join(container.GetDevicesIds(), ",")
		answer.ContainerResponses = append(answer.ContainerResponses,
			&api.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": visible}})
	}
	return answer, nil
}

func run() error {
	listed, err := exec.Command("nvidia-smi", "-L").Output()
	if err != nil {
		return fmt.Errorf("nvidia-smi -L: %w: %s", err, strings.TrimSpace(string(listed)))
	}
	served := &plugin{}
	for _, found := range uuid.FindAllStringSubmatch(string(listed), -1) {
		served.devices = append(served.devices, &api.Device{ID: found[1], Health: api.Healthy})
	}
	path := api.DevicePluginPath + socket
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, served)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	within, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: resource}
	if _, err = api.NewRegistrationClient(kubelet).Register(within, request); err != nil {
		return fmt.Errorf("kubelet refuses %s: %w", resource, err)
	}
	fmt.Printf("registered %d devices of %s\n", len(served.devices), resource)
	for { // kubelet empties the folder when it starts: the unit then starts this program again
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Second):
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("kubelet was restarted: %w", err)
			}
		}
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
