# Debian packages for building, testing and the demo. Sourced by test/run and deploy/demo; POSIX sh.

PACKAGES_BUILD="gcc libc6-dev meson ninja-build pkg-config librabbitmq-dev libpq-dev libcurl4-openssl-dev libjansson-dev libssl-dev"
PACKAGES_SERVERS="rabbitmq-server postgresql openssl python3 python3-pika python3-psycopg2"
PACKAGES_TEST="git ca-certificates php-cli php-pgsql libcmocka-dev python3-pytest python3-pytest-xdist spin pgbouncer libfaketime"
PACKAGES_BENCH="nginx-light iproute2"
PACKAGES_GATES="clang-format clang-tidy" # the gates do without where they cannot be had
PACKAGES_EXAMPLES="libdbd-pg-perl libhttp-daemon-perl ruby ruby-pg ruby-sinatra puma" # those of deploy/examples that are not there are skipped
PACKAGES_EXAMPLES_NEWER="ruby-rackup" # of Debian 13 on: what its Sinatra wants
PACKAGES_DEPLOY="python3-yaml python3-jsonschema binutils buildah runc mtail prometheus lnav docker-compose" # what of deploy/ cannot be tried without them is skipped
PACKAGES_NODE="nodejs npm" # the bench does without where they cannot be had

POLICY=${POLICY:-/usr/sbin/policy-rc.d} # tests have their own
UNITS=${UNITS:-/etc/systemd/system}     # and these two
RUNLEVELS=${RUNLEVELS:-/etc}
packages_log='' policy_is_ours='' temporary_build=''
packages_installed='' # everything that this run has installed, with a space before each

packages_as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Ends what was begun: an installation, and the build in a temporary folder. For traps, too.
packages_cleanup() {
    packages_install_end
    [ -z "$temporary_build" ] || rm -rf "$temporary_build"
    temporary_build=
}

packages_purge_line() {
    [ -z "$packages_installed" ] ||
        echo "To remove the packages that were installed for this: apt-get purge$packages_installed && apt-get autoremove --purge"
}

# Ends a background job with everything that it has started.
end_tree() { # PID
    # shellcheck disable=SC2046
    set -- "$1" $(cat "/proc/$1/task/"*/children 2>/dev/null)
    kill "$1" 2>/dev/null || :
    shift
    for child in "$@"; do end_tree "$child"; done
}

# Those of its arguments that this release has.
packages_known() {
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
    done
}

# Lists those of its arguments that are not installed in $missing, with a space before each.
packages_missing() {
    missing=
    for package in "$@"; do
        if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
            missing="$missing $package"
        fi
    done
}

# Shows a percentage, in place of the one before on a terminal, else in steps of 25. Reads lines of apt's status (KIND:NAME:PERCENT:…)
# or of ninja ([DONE/ALL] …).
progress() { # WHAT
    progress_last=-25
    while IFS= read -r line; do
        case $line in
        dlstatus:* | pmstatus:*)
            percent=${line#*:*:}
            percent=${percent%%[.:]*}
            case $line in pm*) percent=$((50 + percent / 2)) ;; *) percent=$((percent / 2)) ;; esac
            ;;
        \[*/*\]*)
            percent=${line#\[}
            all=${percent#*/}
            percent=$((100 * ${percent%%/*} / ${all%%\]*}))
            ;;
        *) continue ;;
        esac
        if [ -t 1 ]; then
            printf '\r  %s %3d %%' "$1" "$percent"
        elif [ "$percent" -ge $((progress_last + 25)) ]; then
            echo "  $1 $percent %"
            progress_last=$percent
        fi
    done
    if [ -t 1 ]; then printf '\r\033[K'; fi
}

# Links that make systemd or init start something at boot.
packages_enabled() {
    for link in "$UNITS"/*.wants/* "$UNITS"/*.requires/* "$RUNLEVELS"/rc[2-5].d/S*; do
        if [ -L "$link" ]; then echo "$link"; fi
    done
}

# Keeps everything that was enabled since packages_enabled wrote FILE from being started at boot.
packages_disable() { # FILE
    packages_enabled | grep -vxFf "$1" | while IFS= read -r link; do
        case $link in
        "$RUNLEVELS"/rc?.d/*) [ ! -L "$link" ] || packages_as_root update-rc.d "${link##*/S??}" disable </dev/null >/dev/null 2>&1 || : ;;
        *) packages_as_root rm -f "$link" </dev/null ;;
        esac
    done
}

# One installation at a time: nobody removes another's policy-rc.d, and nobody's units count as another's.
packages_lock() {
    exec 8<"${PACKAGES_LOCK:-/var/lib/dpkg}"
    if ! flock -n 8; then
        echo "Another run installs packages: waiting for it"
        flock 8
    fi
}

# Runs apt-get, and waits for another one as apt-get does not. A caller that is interrupted goes on when apt has ended.
packages_apt() {
    trap : INT TERM HUP
    packages_waits=
    while :; do
        packages_status=0
        { packages_as_root apt-get update -qq -o APT::Update::Error-Mode=any &&
            packages_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
                -o APT::Status-Fd=1 -o Dpkg::Options::=--force-confold "$@"; } </dev/null 2>"$packages_log" || packages_status=$?
        [ "$packages_status" != 0 ] && grep -q 'Could not get lock' "$packages_log" || break
        [ -n "$packages_waits" ] || echo "Another apt is running: waiting for it" >&2
        packages_waits=1
        sleep 1 || break
    done
    echo "$packages_status" >"$packages_log.status"
}

# Everything that packages_install does after apt, also when that was interrupted.
packages_install_end() {
    [ -n "$packages_log" ] || return 0
    packages_disable "$packages_log.enabled"
    if [ -n "$policy_is_ours" ]; then packages_as_root rm -f "$POLICY"; fi
    policy_is_ours=
    packages_wanted=$missing
    # shellcheck disable=SC2086
    packages_missing $packages_wanted
    for package in $packages_wanted; do
        case "$missing " in *" $package "*) ;; *) packages_installed="$packages_installed $package" ;; esac
    done
    rm -f "$packages_log" "$packages_log".*
    packages_log=
    exec 8<&-
}

# Installs what is missing of its arguments and says which; says nothing when all is there. Meanwhile a policy-rc.d, unless the machine has
# one, keeps the new servers from being started: the tests and the demo start their own.
packages_install() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "This is not Debian: install what corresponds to: $*" >&2
        return 0
    fi
    packages_missing "$@"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "Packages are missing, and there is neither root nor sudo. Run this as root, which starts no servers, or install:$missing" >&2
        return 1
    fi
    packages_lock
    packages_missing "$@"
    if [ -z "$missing" ]; then
        exec 8<&-
        return 0
    fi
    echo "Installing:$missing"
    packages_log=$(mktemp "${TMPDIR:-/tmp}/onceward-install-XXXXXX")
    packages_enabled >"$packages_log.enabled"
    if [ ! -e "$POLICY" ]; then
        policy_is_ours=1
        printf '#!/bin/sh\nexit 101\n' | packages_as_root tee "$POLICY" >/dev/null
        packages_as_root chmod 755 "$POLICY"
    fi
    # shellcheck disable=SC2086
    packages_apt $missing 8<&- | progress installing 8<&- || : # after Ctrl-C the caller's trap comes first
    packages_status=$(cat "$packages_log.status")
    if [ "$packages_status" != 0 ]; then
        tail -n 3 "$packages_log" >&2
        echo "The packages could not be installed: is there a network? With the packages there already, use --no-install." >&2
    fi
    packages_install_end
    return "$packages_status"
}

# Names the folder of a build in $build: in the tree, or a temporary one that is removed at the end, by the program that follows.
build_place() { # NAME
    build=$root/$1
    if ! [ -w "$root" ]; then
        temporary_build=$(mktemp -d "${TMPDIR:-/tmp}/onceward-build-XXXXXX")
        build=$temporary_build/$1
    fi
    export ONCEWARD_REMOVED_AT_THE_END="$temporary_build"
}

# build_tree FOLDER [TARGET] OPTIONS… : configures (again, when the options changed) and builds; shows the output only when it fails.
build_tree() {
    build_folder=$1 build_target=
    shift
    case $1 in -*) ;; *) build_target=$1 && shift ;; esac
    build_log=$build_folder.log
    exec 9>"$build_folder.lock" # one at a time in a folder
    if ! flock -n 9; then
        echo "Another build runs in $build_folder: waiting for it" >&2
        flock 9
    fi
    if [ -f "$build_folder/build.ninja" ]; then
        meson setup --reconfigure "$@" "$build_folder" "$root" >"$build_log" 2>&1 || rm -rf "$build_folder"
    fi
    if [ ! -f "$build_folder/build.ninja" ]; then
        meson setup "$@" "$build_folder" "$root" >"$build_log" 2>&1 || { cat "$build_log" >&2; return 1; }
    fi
    {
        build_status=0
        ninja -C "$build_folder" $build_target 2>&1 || build_status=$?
        echo "$build_status" >"$build_log.status"
    } | tee -a "$build_log" | if [ -n "${BUILD_PROGRESS:-}" ]; then progress building; else cat >/dev/null; fi || :
    build_status=$(cat "$build_log.status")
    rm -f "$build_log.status"
    if [ "$build_status" = 0 ]; then rm -f "$build_log"; else cat "$build_log" >&2; fi
    exec 9>&-
    return "$build_status"
}
