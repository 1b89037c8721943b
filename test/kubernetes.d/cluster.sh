#!/bin/bash
# A whole Kubernetes on this machine: etcd, kube-apiserver, controller-manager, scheduler, kubelet and kube-proxy built from Go's module
# proxy at pinned versions, containerd, runc and the CNI plugins from Debian. No registry, no systemd.
#
#   cluster.sh build NAME…     programs into $CLUSTER/bin, unless they are there: control, node, etcd, helm, rules, loki, collector
#   cluster.sh image NAME FOLDER|ARCHIVE    localhost/NAME:1 and :2, from FOLDER/Containerfile or an OCI archive; imported at the next up
#   cluster.sh up | down
#   cluster.sh restart-node    kubelet and containerd, ten seconds away
#
# Root, in a network namespace of its own that has the address $NODE_IP (test/kubernetes makes it): so no port of the machine is taken, and
# what is left of links and rules goes with it. $CLUSTER is short: sockets lie in it.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CLUSTER=$(mkdir -p "$CLUSTER" && cd "$CLUSTER" && pwd)
# The control plane has MutatingAdmissionPolicy. The node is older, since kubelet 1.36 refuses Debian's containerd 1.6.
CONTROL=1.36.3 KUBELET=1.34.4 ETCD=3.6.16 NODE=node1 PODNET=10.85.0.0/16 NODE_IP=${NODE_IP:-10.99.0.1}
HELM=3.22.0 LOKI=3.7.8 COLLECTOR=0.149.0 JOBS=${JOBS:-$(nproc)}
# The modules' checksums; those of what they need are in their own go.sum.
CONTROL_SUM=h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=
KUBELET_SUM=h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk=
ETCD_SUM=h1:sLkpvz3RFtiNd/yPrZBKz5kT+XO1ZJkhmuUJeqc7OmA=
HELM_SUM=h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU=
LOKI_SUM=h1:bJ0WFWVOjgvG/jYmT9fIX15SYXXDwuEu/IMgTwMA97U=
COLLECTOR_SUM=h1:ITeN3IiQT6Kiqc+Mo7M40Uh3B3yVhKOfugEiV9osauQ=
P=$CLUSTER/pki CRI=$CLUSTER/run/containerd/containerd.sock
CTR="ctr -a $CRI -n k8s.io"
export KUBECONFIG=$P/admin.kubeconfig PATH=$CLUSTER/bin:$PATH
mkdir -p "$CLUSTER"/{bin,src/etcd,src/loki,src/collector,etc/cni,img,log,run,var,manifests}

start() { # NAME COMMAND…
    local name=$1
    shift
    nohup "$@" >>"$CLUSTER/log/$name.log" 2>&1 </dev/null &
    echo $! >"$CLUSTER/run/$name.pid"
}

stop() { # NAME
    local file=$CLUSTER/run/$1.pid
    [ -f "$file" ] || return 0
    kill "$(cat "$file")" 2>/dev/null || true
    for _ in $(seq 50); do
        kill -0 "$(cat "$file")" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$(cat "$file")" 2>/dev/null || true
    rm -f "$file"
}

wait_for() { # HALF-SECONDS COMMAND…
    local n=$1
    shift
    for _ in $(seq "$n"); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.5
    done
    echo "timed out: $*" >&2
    return 1
}

module() { # MODULE@VERSION CHECKSUM: fetched, and its folder
    local m
    m=$(go mod download -json "$1")
    [ "$(jq -r .Sum <<<"$m")" = "$2" ] || { echo "$1 is not what was pinned" >&2; return 1; }
    jq -r .Dir <<<"$m"
}

# A main module of one's own, here, with the requirements and checksums of another: `go install` refuses a module with replacements. SED is
# for those by a folder, whose modules are published, too. Without `go mod tidy`, which would fetch what only the tests of all of them need.
main_module() { # MODULE VERSION CHECKSUM SED
    local m
    m=$(module "$1@v$2" "$3")
    sed -e 's#^module .*#module own#' -e "$4" "$m/go.mod" >go.mod
    go mod edit -require "$1@v$2"
    install -m 644 "$m/go.sum" go.sum
}

go_build() { # LINKER'S-FLAGS OUTPUT PACKAGE…
    local flags=$1 output=$2
    shift 2
    go build -mod=mod -p "$JOBS" -trimpath -pgo=off -ldflags "-s -w $flags" -o "$output" "$@"
}

build_kubernetes() { # VERSION CHECKSUM PROGRAM…
    local v=$1 sum=$2 missing=() c flags=
    shift 2
    for c in "$@"; do
        [ "$(cat "$CLUSTER/bin/$c.version" 2>/dev/null)" = "$v" ] || missing+=("k8s.io/kubernetes/cmd/$c")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    mkdir -p "$CLUSTER/src/kube-$v"
    cd "$CLUSTER/src/kube-$v"
    main_module k8s.io/kubernetes "$v" "$sum" 's#=> ./staging/src/\(k8s.io/[a-z0-9-]*\)#=> \1 v0.'"${v#1.}#"
    for c in gitVersion=v$v gitMajor=1 gitMinor="$(cut -d. -f2 <<<"$v")" gitCommit=local gitTreeState=clean buildDate=1970-01-01T00:00:00Z; do
        flags="$flags -X k8s.io/component-base/version.$c"
    done
    go_build "$flags" "$CLUSTER/bin/" "${missing[@]}"
    for c in "${missing[@]}"; do echo "$v" >"$CLUSTER/bin/${c##*/}.version"; done
}

build_etcd() {
    [ ! -x "$CLUSTER/bin/etcd" ] || return 0
    cd "$CLUSTER/src/etcd"
    main_module go.etcd.io/etcd/server/v3 "$ETCD" "$ETCD_SUM" '/=> \.\.\//d'
    go_build "" "$CLUSTER/bin/etcd" go.etcd.io/etcd/server/v3
}

build_helm() {
    [ ! -x "$CLUSTER/bin/helm" ] || return 0
    module "helm.sh/helm/v3@v$HELM" "$HELM_SUM" >/dev/null
    GOBIN=$CLUSTER/bin go install -p "$JOBS" -trimpath -ldflags '-s -w' "helm.sh/helm/v3/cmd/helm@v$HELM"
}

build_loki() { # whole, or PACKAGE alone
    cd "$CLUSTER/src/loki"
    main_module github.com/grafana/loki/v3 "$LOKI" "$LOKI_SUM" '/=> \.\//d'
    mkdir -p rules
    cp "$HERE/rules.go" rules/main.go
    go_build "" "$CLUSTER/bin/$1" "$2"
}

# With what deploy/logs/otel-collector.yaml names, and nothing else.
build_collector() {
    [ ! -x "$CLUSTER/bin/otelcol" ] || return 0
    cd "$CLUSTER/src/collector"
    module "go.opentelemetry.io/collector/cmd/builder@v$COLLECTOR" "$COLLECTOR_SUM" >/dev/null
    GOBIN=$PWD go install -p "$JOBS" -trimpath "go.opentelemetry.io/collector/cmd/builder@v$COLLECTOR"
    cat >builder.yaml <<C
dist: {name: otelcol, output_path: ./out, module: example.test/otelcol}
receivers: [{gomod: "github.com/open-telemetry/opentelemetry-collector-contrib/receiver/filelogreceiver v$COLLECTOR"}]
processors:
- {gomod: "go.opentelemetry.io/collector/processor/batchprocessor v$COLLECTOR"}
- {gomod: "go.opentelemetry.io/collector/processor/memorylimiterprocessor v$COLLECTOR"}
exporters: [{gomod: "go.opentelemetry.io/collector/exporter/otlphttpexporter v$COLLECTOR"}]
providers:
- {gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v1.55.0}
- {gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v1.55.0}
C
    GOFLAGS="-p=$JOBS -trimpath -buildvcs=false" ./builder --config builder.yaml >"$CLUSTER/log/builder.log" 2>&1
    mv out/otelcol "$CLUSTER/bin/otelcol"
}

build() { # NAME…
    export CGO_ENABLED=0
    for name in "$@"; do
        case $name in
        control) build_kubernetes $CONTROL $CONTROL_SUM kubectl kube-apiserver kube-scheduler kube-controller-manager ;;
        node) build_kubernetes $KUBELET $KUBELET_SUM kubelet kube-proxy ;;
        rules) [ "$CLUSTER/bin/rules" -nt "$HERE/rules.go" ] || build_loki rules ./rules ;; # the rule engine alone
        loki) [ -x "$CLUSTER/bin/loki" ] || build_loki loki github.com/grafana/loki/v3/cmd/loki ;;
        etcd | helm | collector) "build_$name" ;;
        *) echo "cluster.sh build: no $name" >&2 && exit 2 ;;
        esac
    done
}

image() { # NAME FOLDER|ARCHIVE
    local from=$2 B="buildah --storage-driver vfs --root $CLUSTER/var/buildah --runroot $CLUSTER/run/buildah"
    if [ -d "$from" ]; then
        $B bud --isolation chroot -t "localhost/$1:1" -f "$from/Containerfile" "$from" >"$CLUSTER/log/image-$1.log" 2>&1
    else
        $B pull -q "oci-archive:$from" >"$CLUSTER/run/pulled"
        $B tag "$(cat "$CLUSTER/run/pulled")" "localhost/$1:1"
    fi
    for tag in 1 2; do
        rm -f "$CLUSTER/img/$1-$tag.tar"
        $B push -q "localhost/$1:1" "docker-archive:$CLUSTER/img/$1-$tag.tar:localhost/$1:$tag"
    done
}

pause_image() { # what holds a pod's namespaces
    [ ! -f "$CLUSTER/img/pause-1.tar" ] || return 0
    mkdir -p "$CLUSTER/src/pause"
    cat >"$CLUSTER/src/pause/pause.c" <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void down(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void)
{
    struct sigaction d = {.sa_handler = down}, r = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGINT, &d, 0), sigaction(SIGTERM, &d, 0), sigaction(SIGCHLD, &r, 0);
    for (;;)
        pause();
}
C
    gcc -static -Os -s -o "$CLUSTER/src/pause/pause" "$CLUSTER/src/pause/pause.c"
    printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >"$CLUSTER/src/pause/Containerfile"
    image pause "$CLUSTER/src/pause"
}

containerd_start() {
    start containerd containerd -c "$CLUSTER/etc/containerd.toml"
    wait_for 60 $CTR version
}

containerd_up() {
    cat >"$CLUSTER/etc/containerd.toml" <<C
version = 2
root = "$CLUSTER/var/containerd"
state = "$CLUSTER/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "$CRI"
[plugins."io.containerd.internal.v1.opt"]
  path = "$CLUSTER/var/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE runc cannot lower oom_score_adj, which sandboxes ask for: every pod would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$CLUSTER/etc/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
C
    cat >"$CLUSTER/etc/cni/10-bridge.conflist" <<C
{"cniVersion":"0.4.0","name":"k8s","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"$PODNET"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"$CLUSTER/run/cni-ipam"}}]}
C
    sysctl -qw net.ipv4.ip_forward=1
    containerd_start
    for t in "$CLUSTER"/img/*.tar; do $CTR images import --snapshotter overlayfs "$t" >/dev/null; done
}

kubelet_up() {
    cat >"$CLUSTER/etc/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$CRI
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
syncFrequency: 5s
staticPodPath: $CLUSTER/manifests
podLogsDir: $CLUSTER/log/pods
volumePluginDir: $CLUSTER/var/volumeplugins
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi, nodefs.inodesFree: "1"}
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $P/kubelet-server.crt
tlsPrivateKeyFile: $P/kubelet-server.key
C
    kubelet_start
}

kubelet_start() {
    start kubelet kubelet --config "$CLUSTER/etc/kubelet.yaml" --root-dir "$CLUSTER/var/kubelet" --cert-dir "$CLUSTER/var/kubelet/pki" \
        --hostname-override $NODE --node-ip "$NODE_IP" --kubeconfig "$P/kubelet.kubeconfig" --v 2
    wait_for 120 curl -fs http://127.0.0.1:10248/healthz
}

certificate() { # NAME SUBJECT EXTENSIONS
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" -extfile <(printf "%b" "$3") 2>/dev/null
    rm "$1.csr"
}

certificates() {
    local client="extendedKeyUsage=clientAuth" server="extendedKeyUsage=serverAuth"
    mkdir -p "$P"
    cd "$P"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=kube-ca 2>/dev/null
    openssl genrsa -out sa.key 2048 2>/dev/null
    openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
    certificate apiserver /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost\n$server"
    certificate kubelet-server "/O=system:nodes/CN=system:node:$NODE" "subjectAltName=IP:127.0.0.1,IP:$NODE_IP,DNS:$NODE\n$server"
    certificate admin /O=system:masters/CN=admin "$client"
    certificate kcm /CN=system:kube-controller-manager "$client"
    certificate scheduler /CN=system:kube-scheduler "$client"
    certificate proxy /CN=system:kube-proxy "$client"
    certificate kubelet "/O=system:nodes/CN=system:node:$NODE" "$client"
    certificate kubelet-client /O=system:masters/CN=apiserver-kubelet-client "$client"
    for u in admin kcm scheduler proxy kubelet; do
        cat >$u.kubeconfig <<C
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $P/ca.crt}}]
users: [{name: u, user: {client-certificate: $P/$u.crt, client-key: $P/$u.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
C
    done
}

control_up() {
    start etcd etcd --data-dir "$CLUSTER/var/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:23790 \
        --advertise-client-urls http://127.0.0.1:23790 --listen-peer-urls http://127.0.0.1:23800
    start kube-apiserver kube-apiserver --etcd-servers http://127.0.0.1:23790 --bind-address 127.0.0.1 --advertise-address "$NODE_IP" \
        --secure-port 6443 --endpoint-reconciler-type none --client-ca-file "$P/ca.crt" \
        --tls-cert-file "$P/apiserver.crt" --tls-private-key-file "$P/apiserver.key" \
        --kubelet-client-certificate "$P/kubelet-client.crt" --kubelet-client-key "$P/kubelet-client.key" \
        --kubelet-certificate-authority "$P/ca.crt" --kubelet-preferred-address-types InternalIP \
        --service-account-key-file "$P/sa.pub" --service-account-signing-key-file "$P/sa.key" \
        --service-account-issuer https://kubernetes.default.svc --authorization-mode Node,RBAC --allow-privileged \
        --service-cluster-ip-range 10.96.0.0/16
    wait_for 120 kubectl get --raw /readyz
    start kube-controller-manager kube-controller-manager --kubeconfig "$P/kcm.kubeconfig" --use-service-account-credentials \
        --service-account-private-key-file "$P/sa.key" --root-ca-file "$P/ca.crt" --leader-elect=false --bind-address 127.0.0.1
    start kube-scheduler kube-scheduler --kubeconfig "$P/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1
    wait_for 60 kubectl get serviceaccount default
}

up() {
    pause_image
    certificates
    containerd_up
    control_up
    kubelet_up
    start kube-proxy kube-proxy --kubeconfig "$P/proxy.kubeconfig" --hostname-override $NODE --cluster-cidr "$PODNET" --proxy-mode iptables \
        --healthz-bind-address 127.0.0.1:10256 --metrics-bind-address 127.0.0.1:10249 --conntrack-max-per-core 0
    wait_for 60 kubectl get node $NODE
    kubectl wait --for=condition=Ready node/$NODE --timeout=60s
}

restart_node() {
    stop kubelet
    stop containerd
    sleep 10
    containerd_start
    kubelet_start
}

down() {
    for n in kube-scheduler kube-controller-manager kubelet; do stop $n; done
    if [ -S "$CRI" ]; then
        for c in $($CTR tasks ls -q 2>/dev/null); do $CTR tasks kill -s KILL "$c" >/dev/null 2>&1 || true; done
        sleep 1
        for c in $($CTR containers ls -q 2>/dev/null); do
            $CTR tasks rm -f "$c" >/dev/null 2>&1 || true
            $CTR containers rm "$c" >/dev/null 2>&1 || true
        done
    fi
    for n in containerd kube-proxy kube-apiserver etcd; do stop $n; done
    awk -v d="$CLUSTER/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do umount -l "$m" || true; done
    for h in /sys/fs/cgroup/*/; do
        [ ! -d "${h}kubepods" ] || find "${h}kubepods" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    rm -rf --one-file-system "$CLUSTER"/var/{etcd,kubelet,containerd} "$CLUSTER"/run/{containerd,cni-ipam} "$CLUSTER"/log/pods "$P"
}

case ${1:-} in
up | down) "$1" ;;
build) build "${@:2}" ;;
image) image "$2" "$3" ;;
restart-node) restart_node ;;
*) sed -n 2,13p "$0" && exit 2 ;;
esac
