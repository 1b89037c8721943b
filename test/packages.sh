# Debian packages for building, testing and the demo. Sourced by test/run and deploy/demo; POSIX sh.

PACKAGES_BUILD="gcc libc6-dev meson ninja-build pkg-config librabbitmq-dev libpq-dev libcurl4-openssl-dev libjansson-dev libssl-dev"
PACKAGES_SERVERS="rabbitmq-server postgresql openssl python3 python3-pika python3-psycopg2"
PACKAGES_TEST="git ca-certificates php-cli php-pgsql libcmocka-dev python3-pytest python3-pytest-xdist spin pgbouncer libfaketime"
PACKAGES_BENCH="nginx-light iproute2"
PACKAGES_GATES="clang-format clang-tidy" # the gates do without where they cannot be had
PACKAGES_EXAMPLES="libdbd-pg-perl libhttp-daemon-perl ruby ruby-pg ruby-sinatra puma" # those of deploy/examples that are not there are skipped
PACKAGES_EXAMPLES_NEWER="ruby-rackup" # of Debian 13 on: what its Sinatra wants
PACKAGES_DEPLOY="python3-yaml python3-jsonschema binutils buildah runc mtail prometheus lnav" # what of deploy/ cannot be tried without them is skipped
PACKAGES_NODE="nodejs npm" # the bench does without where they cannot be had

POLICY=/usr/sbin/policy-rc.d
policy_is_ours=

packages_as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

packages_cleanup() {
    if [ -n "$policy_is_ours" ]; then
        packages_as_root rm -f "$POLICY"
        policy_is_ours=
    fi
}

# Those of its arguments that this release has.
packages_known() {
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
    done
}

# Installs what is missing of its arguments and says which; says nothing when all is there. Meanwhile a policy-rc.d, unless the
# machine has one, keeps the new servers from being started: the tests and the demo start their own.
packages_install() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "This is not Debian: install what corresponds to: $*" >&2
        return 0
    fi
    missing=
    for package in "$@"; do
        if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
            missing="$missing $package"
        fi
    done
    [ -n "$missing" ] || return 0
    echo "Installing:$missing"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "Neither root nor sudo. Run as root: apt-get install$missing" >&2
        return 1
    fi
    if [ ! -e "$POLICY" ]; then
        policy_is_ours=1
        printf '#!/bin/sh\nexit 101\n' | packages_as_root tee "$POLICY" >/dev/null
        packages_as_root chmod 755 "$POLICY"
    fi
    packages_status=0
    # shellcheck disable=SC2086
    { packages_as_root apt-get update -qq &&
        packages_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
            -o Dpkg::Options::=--force-confold $missing; } </dev/null >"${TMPDIR:-/tmp}/onceward-install.$$" 2>&1 || packages_status=$?
    [ "$packages_status" = 0 ] || cat "${TMPDIR:-/tmp}/onceward-install.$$" >&2
    rm -f "${TMPDIR:-/tmp}/onceward-install.$$"
    packages_cleanup
    return "$packages_status"
}

# build_tree FOLDER [TARGET] OPTIONS… : configures (again, when the options changed) and builds; shows the output only when it fails.
build_tree() {
    build_folder=$1 build_target=
    shift
    case $1 in -*) ;; *) build_target=$1 && shift ;; esac
    build_log=$build_folder.log
    if [ -f "$build_folder/build.ninja" ]; then
        meson setup --reconfigure "$@" "$build_folder" "$root" >"$build_log" 2>&1 || rm -rf "$build_folder"
    fi
    if [ ! -f "$build_folder/build.ninja" ]; then
        meson setup "$@" "$build_folder" "$root" >"$build_log" 2>&1 || { cat "$build_log" >&2; return 1; }
    fi
    ninja -C "$build_folder" $build_target >>"$build_log" 2>&1 || { cat "$build_log" >&2; return 1; }
    rm -f "$build_log"
}
