#!/bin/bash
# gpu-ami replica of the script with which a node of Canonical's EKS AMI joins its cluster: what it configures, and in which order. It asks EKS
# nothing: both --apiserver-endpoint and --b64-cluster-ca are needed.
set -o errexit -o nounset -o pipefail
endpoint='' authority='' dns=10.100.0.10 extra='' pause=3.5 names=()
while [ $# -gt 0 ]; do
    case $1 in
        --apiserver-endpoint) endpoint=$2; shift 2 ;;
        --b64-cluster-ca) authority=$2; shift 2 ;;
        --dns-cluster-ip) dns=$2; shift 2 ;;
        --kubelet-extra-args) extra=$2; shift 2 ;;
        --pause-container-version) pause=$2; shift 2 ;;
        --use-max-pods | --container-runtime | --ip-family) shift 2 ;;
        *) names+=("$1"); shift ;;
    esac
done
if [ ${#names[@]} -ne 1 ] || [ -z "$endpoint" ] || [ -z "$authority" ]; then
    echo "usage: $0 --apiserver-endpoint URL --b64-cluster-ca CA [options] <cluster-name>" >&2
    exit 1
fi
imds=/usr/local/share/eks/imds
snap alias kubelet-eks.kubelet kubelet
snap stop kubelet-eks
region=$($imds latest/meta-data/placement/region)
image=$(/etc/eks/get-ecr-uri.sh "$region" "$($imds latest/meta-data/services/domain)")/eks/pause:$pause

mkdir -p /etc/kubernetes/pki
base64 -d <<<"$authority" >/etc/kubernetes/pki/ca.crt
sed -i -e "s,CLUSTER_NAME,${names[0]},g" -e "s,MASTER_ENDPOINT,$endpoint,g" -e "s,AWS_REGION,$region,g" /var/lib/kubelet/kubeconfig

sed "s,SANDBOX_IMAGE,$image,g" </usr/local/share/eks/containerd-config.toml >/etc/containerd/config.toml
systemctl restart containerd

snap set kubelet-eks cluster-dns="$dns" config=/etc/kubernetes/kubelet/kubelet-config.json kubeconfig=/var/lib/kubelet/kubeconfig \
    client-ca-file=/etc/kubernetes/pki/ca.crt container-runtime-endpoint=unix:///run/containerd/containerd.sock \
    node-ip="$($imds latest/meta-data/local-ipv4)" args="$extra"
snap start --enable kubelet-eks
