# Shared by the scripts of this folder; sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; } # wanted, have

# What no package can mend, each in one sentence.
need_machine() { # GiB of free disk
    local free built=0 folder=${CARGO_TARGET_DIR:-$root}
    [ "$(uname -m)" = x86_64 ] || die "uwarp runs on x86-64 and this machine is $(uname -m)"
    distribution
    case $distribution in
    debian-12 | debian-13) ;;
    *) echo "$(basename "$0"): tested on Debian 12 and 13, not on $distribution: missing packages are looked up by their Debian names" >&2 ;;
    esac
    mkdir -p "$folder"
    free=$(df --output=avail -k "$folder" | tail -n 1)
    # What an earlier build has written there need not be free again.
    [ ! -d "${CARGO_TARGET_DIR:-target}" ] || built=$(du -sk "${CARGO_TARGET_DIR:-target}" 2>/dev/null | cut -f 1) || true
    [ $(((free + built) >> 20)) -ge "$1" ] ||
        die "the build takes $1 GiB in $folder, where $((free >> 20)) GiB are free and it has $((built >> 20)): free some, or set CARGO_TARGET_DIR to a folder on a larger disk"
}
distribution() { # sets $distribution and $codename
    distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}-${VERSION_ID:-unknown}") || distribution=unknown
    codename=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}") || codename=
}

# Where apt gets a suite from here.
mirror_of() { # suite
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk -v of="$1" '$2 == of { print $1; exit }'
}

# A Rust toolchain that is recent enough: the user's own, or else Debian's.
need_rust() {
    local wanted candidate
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null || [ ! -r "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
    rust_is_recent "$wanted" && return
    candidate=$(rust_candidate)
    # Lists may be there and old: a root that debootstrap has made knows the release, not its security updates.
    if is_root && ! at_least "$wanted" "${candidate:-0}"; then
        apt_get update || true
        candidate=$(rust_candidate)
    fi
    at_least "$wanted" "${candidate:-0}" ||
        die "Rust $wanted or later is needed and apt offers ${candidate:-none}: add the suite '$codename-security' to apt's sources, or install Rust from https://rustup.rs, and run this again"
    need_packages cargo-web rustc-web rustfmt-web rust-web-clippy
    hash -r
    rust_is_recent "$wanted" ||
        die "Rust $candidate is installed and $(command -v cargo || echo 'no cargo') comes before it on PATH: put /usr/bin first, or bring the other toolchain to $wanted ('rustup update')"
}
rust_is_recent() { # wanted
    command -v cargo >/dev/null && command -v rustc >/dev/null && at_least "$1" "$(rustc --version | awk '{print $2}')"
}
rust_candidate() { apt-cache policy rustc-web 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p' || true; }

# What suite lint takes of the toolchain: one that was installed with rustup's minimal profile lacks it.
need_lint() {
    local missing=()
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    [ ${#missing[@]} -eq 0 ] && return
    command -v rustup >/dev/null ||
        die "the Rust toolchain has no ${missing[*]}, which suite lint needs: install what is missing beside cargo and run this again"
    say "installing ${missing[*]}"
    rustup component add "${missing[@]}"
}

# A version that the oldest supported Rust builds.
need_nextest() {
    local version=0.9.143
    cargo nextest --version >/dev/null 2>&1 && return
    cargo_install --no-default-features --features default-no-update "cargo-nextest@$version"
}

need_deny() {
    local version=0.20.2
    cargo deny --version >/dev/null 2>&1 && return
    cargo_install "cargo-deny@$version"
}

# Built below the build directory: when killed, cargo leaves its own folder in /tmp behind.
cargo_install() { # options, NAME@VERSION last
    local folder=${CARGO_TARGET_DIR:-$root/target}/install
    say "installing ${*: -1}"
    CARGO_TARGET_DIR=$folder cargo install --locked --quiet "$@"
    rm -rf "$folder"
    export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
}

# apt, without questions; what it says is shown only if it fails. It waits for another apt, such as one that a killed script left.
apt_get() {
    local output
    output=$(DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null 2>&1) && return
    printf '%s\n' "$output" >&2
    return 1
}

# Installs the Debian packages of the arguments that are not there; asks the network for nothing if all are.
# Never removes one: where apt would have to, this fails and apt's reason is shown.
need_packages() {
    local missing
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    is_root || die "these Debian packages are missing: $missing; run this as root, or 'apt-get install $missing' first"
    command -v apt-get >/dev/null || die "these packages are missing, under their Debian names, and there is no apt-get: $missing"
    say "installing $missing"
    # Debian starts the services of packages. The tests run their own tgtd.
    case " $missing " in
    *" tgt "*) [ ! -d /run/systemd/system ] || systemctl mask --quiet tgt.service || true ;;
    esac
    apt_get install --no-install-recommends --no-remove $missing 2>/dev/null || {
        # An installation that was killed is finished first.
        DEBIAN_FRONTEND=noninteractive dpkg --configure -a </dev/null >/dev/null 2>&1 || true
        apt_get update
        apt_get install --no-install-recommends --no-remove $missing
    } || die "apt cannot install $missing without removing something, or cannot reach its archive (see above)"
}
missing_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    echo "${missing[*]}"
}

# What scripts/aarch64 sets: the names of the compilers begin with it, and cargo builds in a folder of that processor.
cross=${UWARP_CROSS:-}
built_for() { echo "${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}$1"; } # profile

# cargo only recommends the certificates without which it downloads nothing.
build_packages="ca-certificates build-essential pkg-config libdpdk-dev libclang-dev libibverbs-dev librdmacm-dev"
run_packages="iproute2"
# What scripts/package takes beside the compilers.
package_packages="binutils xz-utils python3"
# And what its test takes to install and run what it made.
package_test_packages="python3-venv ibverbs-utils rdmacm-utils"
# The programs that scripts/demo runs on uwarp's libraries, and their like over the kernel's TCP.
stock_packages="rdmacm-utils perftest qperf"
# The programs that suite verbs runs.
verbs_packages="ibverbs-utils rdmacm-utils perftest qperf fio libfabric-bin ucx-utils infiniband-diags rdma-core python3-pyverbs tgt libiscsi-bin libiscsi-dev iputils-ping iperf3"
test_packages="tshark ethtool nftables codespell valgrind"

# Runs this script again in a world of its own: a folder for all temporary files, and, where the user may have them,
# process numbers and mounts. Whatever ends the script ends its processes, mounts and network namespaces with it; the folder
# goes as well, after SIGKILL with the next run. In that world $UWARP_WORLD is the folder, and this returns.
in_own_world() { # arguments of the script
    local unshare=() status=0 name inner=
    [ -z "${UWARP_WORLD:-}" ] || { enter_world; return; }
    name=uwarp-$(basename "$0")
    sweep "$name"
    world=$(mktemp -d "${TMPDIR:-/tmp}/$name.XXXXXX")
    # Tests act as other users in folders below.
    chmod 711 "$world"
    exec 9>"$world/lock"
    flock 9
    if is_root; then unshare=(unshare --mount --pid --fork --kill-child --mount-proc)
    else unshare=(unshare --user --map-current-user --mount --pid --fork --kill-child --mount-proc); fi
    "${unshare[@]}" true 2>/dev/null || unshare=()
    trap 'trap - EXIT INT TERM HUP; [ -z "$inner" ] || kill -KILL -- "-$inner" 2>/dev/null || true; wait; clean "$world"; exit ${status:-1}' EXIT
    trap 'status=130; exit 130' INT
    trap 'status=143; exit 143' TERM HUP
    # Not in the foreground: a shell sees a signal only when its foreground command has ended.
    # A process group of its own, so that all of it can be killed where there are no process numbers of its own.
    set -m
    UWARP_WORLD=$world setpriv --pdeathsig KILL "${unshare[@]}" "$0" "$@" <&0 &
    inner=$!
    set +m
    wait "$inner" || status=$?
    inner=
    exit "$status"
}
enter_world() {
    # Not if it was entered by the script that runs this one.
    [ ! -d "$UWARP_WORLD/run" ] || return 0
    export TMPDIR=$UWARP_WORLD XDG_RUNTIME_DIR=$UWARP_WORLD/run
    mkdir -m 700 "$XDG_RUNTIME_DIR"
    # Names of network namespaces, DPDK's run-time files, and memory that is shared by name, go with the mount.
    if [ "$$" = 1 ] && is_root; then
        for folder in /run/netns /run/dpdk /dev/shm; do
            if [ -d "$folder" ] || mkdir "$folder"; then mount -t tmpfs tmpfs "$folder"; fi
        done
    fi
}
# Runs a command as root; for an ordinary user, as root of a user namespace with mounts and a network of its own. `ip netns` and
# DPDK keep their files below /run, which is nobody else's there.
as_root() { # command ...
    if is_root; then "$@"; return; fi
    PATH=$PATH:/usr/sbin:/sbin unshare --user --map-root-user --mount --net \
        bash -ec 'mount -t tmpfs tmpfs /run; mkdir /run/netns; ip link set lo up; exec "$@"' bash "$@"
}
clean() { # folder of a world that has ended
    local pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
    # scripts/hugepages notes there what the machine had.
    if [ -e "$1/hugepages" ]; then cat "$1/hugepages" >"$pool" || true; fi
    rm -rf --one-file-system "$1"
}
sweep() { # name: folders whose script was killed
    local folder
    for folder in "${TMPDIR:-/tmp}/$1".??????; do
        [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || continue
        # Without a lock it is a moment old, or its script was killed while it made or removed it.
        [ -e "$folder/lock" ] || [ -n "$(find "$folder" -maxdepth 0 -mmin +1)" ] || continue
        if [ ! -e "$folder/lock" ] || (exec 8<"$folder/lock" && flock --nonblock 8); then clean "$folder"; fi
    done
}
