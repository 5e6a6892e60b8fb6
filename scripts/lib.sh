# Shared by the scripts of this folder; sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# The one thing that is asked for and not installed: a Rust toolchain.
need_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null || [ ! -r "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
    command -v cargo >/dev/null ||
        die "a Rust toolchain of version $wanted or later is needed and no cargo was found: install one (https://rustup.rs) and run this again"
    have=$(rustc --version | awk '{print $2}')
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $have is too old, $wanted or later is needed: 'rustup update' and run this again"
}

# What suite lint takes of the toolchain: one that was installed with the minimal profile lacks it.
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

# Installs the Debian packages of the arguments that are not there; asks the network for nothing if all are.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" = 0 ] || die "these Debian packages are missing: ${missing[*]}; run this as root, or 'apt-get install ${missing[*]}' first"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null 2>&1 || {
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
    }
}

build_packages="build-essential pkg-config libdpdk-dev libclang-dev"
run_packages="iproute2"
test_packages="tshark ethtool nftables"
