#!/usr/bin/env bash
# Sets this host up for a replay server over DPDK: packages, hugepages, the device's driver, build, configuration. And undoes
# it. See --help, and docs/nic-host.md for the whole way from a bare machine.
#
# Every change is written into a journal before it is made: --undo takes them back, the last one first, also after a set-up
# that stopped half-way. Packages and what was built stay.
#
# For tests, SYSFS, ETC and STATE name other folders than /sys, /etc and /var/lib/replay-server.
set -euo pipefail
export LC_ALL=C

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SYSFS=${SYSFS:-/sys} ETC=${ETC:-/etc} STATE=${STATE:-/var/lib/replay-server}
journal=$STATE/setup_dpdk.journal
mark="# Written by setup_dpdk.sh; setup_dpdk.sh --undo removes it unless it is changed."

mode=apply yes=no device="" address="" gateway="" via=auto transport=dpdk port=6379 admin_port="" mtu="" lcore="" memory=""
hugepages="" page_size=2M name=replay-server config_folder=$ETC/replay-server no_iommu=no password=yes build=yes
take_default_route=no take_login=no take_address=no
problems=0 quiet=no hint=""

# shellcheck source=native/net/dpdk/setup/journal.sh
. "$repository/native/net/dpdk/setup/journal.sh"
# shellcheck source=native/net/dpdk/setup/device.sh
. "$repository/native/net/dpdk/setup/device.sh"
# shellcheck source=native/net/dpdk/setup/take_device.sh
. "$repository/native/net/dpdk/setup/take_device.sh"
# shellcheck source=native/net/dpdk/setup/configuration.sh
. "$repository/native/net/dpdk/setup/configuration.sh"

usage() {
    cat <<'END'
usage: ./setup_dpdk.sh            --device IF|PCI --address A/MASK [OPTIONS]   sets this host up (as root)
       ./setup_dpdk.sh --check    [--device IF|PCI] [OPTIONS]   what is there, what is to do; exit 1 if anything is
       ./setup_dpdk.sh --dry-run  --device IF|PCI --address A/MASK [OPTIONS]   prints every command and file
       ./setup_dpdk.sh --undo     [--dry-run]   gives devices and pages back, removes what was written

  --device IF|PCI      the NIC, by interface (enp3s0) or PCI address (0000:03:00.0); a veth or the like works too
  --address A/MASK     the server's IPv4 address, e.g. 10.0.0.2/24: one that the kernel does not have
  --gateway A          for clients outside of that network
  --via HOW            vfio         the device leaves the kernel (default for a PCI device)
                       bifurcated   it stays with its kernel driver, and DPDK uses it beside (default for NVIDIA mlx4, mlx5)
                       af_xdp       it stays with its kernel driver, frames go through XDP sockets (default for others)
                       af_packet    likewise, through packet sockets: slower, but on anything
  --transport T        dpdk (default): lwIP; fstack: F-Stack, which you have installed (docs/nic-host.md)
  --port N             of the server (6379)        --admin-port N   on the kernel's loopback (port + 10000)
  --mtu N              (the device's)              --lcore N        the processor that polls (the last of the NIC's node)
  --memory SIZE        in hugepages (1gb)          --hugepages N    the same as a number of pages
  --page-size 2M|1G    (2M)                        --name NAME      of the files written, one a server (replay-server)
  --config-dir DIR     where they go (/etc/replay-server)
  --no-iommu           a host without IOMMU: the device may then write to all memory
  --no-password        let everybody in who reaches the address   --no-build   do not build the transport
  --take-default-route, --take-login, --take-address
                       use the device although it carries the default route, a login, or an address of this host
  --yes                do not ask
END
}

set_up() {
    problems=0
    if [ -n "$device" ]; then
        look_at_device
        say "device: $device${pci:+, PCI $pci}${interface:+, interface ${interfaces[*]}}, driver ${driver:-none}, via $via"
        refuse_what_is_in_use
        refuse_address_of_kernel
        refuse_mtu
    fi
    step_packages
    step_build
    if [ -n "$device" ]; then
        step_hugepages
        case $via in
        vfio)
            step_iommu
            step_vfio
            step_bind ;;
        bifurcated) have "$pci stays with $driver, and DPDK uses it beside the kernel" ;;
        *) step_interface ;;
        esac
    fi
    [ -z "$device" ] || choose_lcore
    if [ -n "$device" ] && [ -n "$address" ]; then
        step_configuration
    fi
}

is_ipv4() {
    local part parts
    [[ $1 =~ ^[0-9]{1,3}(\.[0-9]{1,3}){3}$ ]] || return 1
    IFS=. read -ra parts <<<"$1"
    for part in "${parts[@]}"; do [ "$((10#$part))" -le 255 ] || return 1; done
}

is_number() { [[ $2 =~ ^[0-9]{1,9}$ ]] || wrong_usage "$1: expected a number, got '$2'"; }

read_options() {
    local option
    while [ $# -gt 0 ]; do
        option=$1
        case $option in
        --device|--address|--gateway|--via|--transport|--port|--admin-port|--mtu|--lcore|--memory|--hugepages|--page-size|--name|--config-dir)
            [ $# -ge 2 ] || wrong_usage "$option needs a value" ;;
        esac
        case $option in
        --device) device=$2 && shift ;;
        --address) address=$2 && shift ;;
        --gateway) gateway=$2 && shift ;;
        --via) via=$2 && shift ;;
        --transport) transport=$2 && shift ;;
        --port) port=$2 && is_number "$@" && shift ;;
        --admin-port) admin_port=$2 && is_number "$@" && shift ;;
        --mtu) mtu=$2 && is_number "$@" && shift ;;
        --lcore) lcore=$2 && is_number "$@" && shift ;;
        --memory) memory=$2 && shift ;;
        --hugepages) hugepages=$2 && is_number "$@" && shift ;;
        --page-size) page_size=${2%B} && shift ;;
        --name) name=$2 && shift ;;
        --config-dir) config_folder=$2 && shift ;;
        --check) mode=check ;;
        --dry-run) [ $mode = undo ] && mode=undo_plan || mode=plan ;;
        --undo) [ $mode = plan ] && mode=undo_plan || mode=undo ;;
        --no-iommu) no_iommu=yes ;;
        --no-password) password=no ;;
        --no-build) build=no ;;
        --take-default-route) take_default_route=yes ;;
        --take-login) take_login=yes ;;
        --take-address) take_address=yes ;;
        --yes) yes=yes ;;
        --help|-h) usage && exit 0 ;;
        *) wrong_usage "unknown option '$option'" ;;
        esac
        shift
    done
}

check_options() {
    case $via in auto|vfio|bifurcated|af_xdp|af_packet) ;; *) wrong_usage "--via: expected vfio, bifurcated, af_xdp or af_packet, got '$via'" ;; esac
    case $transport in dpdk|fstack) ;; *) wrong_usage "--transport: expected dpdk or fstack, got '$transport'" ;; esac
    case $page_size in 2M|1G) ;; *) wrong_usage "--page-size: expected 2M or 1G, got '$page_size'" ;; esac
    case $name in ""|*[!A-Za-z0-9_-]*) wrong_usage "--name: expected letters, digits, - and _, got '$name'" ;; esac
    if [ -n "$address" ]; then
        if [[ $address != */* ]] || ! is_ipv4 "${address%/*}" || [[ ! ${address#*/} =~ ^([1-9]|[12][0-9]|3[0-2])$ ]]; then
            wrong_usage "--address: expected an IPv4 address and the bits of its mask, such as 10.0.0.2/24, got '$address'"
        fi
    fi
    [ -z "$gateway" ] || is_ipv4 "$gateway" || wrong_usage "--gateway: expected an IPv4 address, got '$gateway'"
    [ -z "$memory" ] || memory=$(bytes_of "$memory")
    [ "${memory:-$LEAST_BYTES}" -ge $LEAST_BYTES ] || wrong_usage "--memory: expected 256mb or more"
    admin_port=${admin_port:-$((port + 10000))}
    case $mode in apply|plan)
        if [ -z "$device" ] || [ -z "$address" ]; then wrong_usage "--device and --address are needed"; fi ;;
    esac
    case $mode in apply|undo)
        [ "$(id -u)" = 0 ] || die "this needs root: sudo $0 …; --check and --dry-run do not" ;;
    esac
}

ask() {
    [ $yes = no ] || return 0
    [ -t 0 ] || die "nobody to ask: say --yes"
    read -r -p "$1 [y/N] " answer
    case $answer in y|Y|yes) ;; *) die "nothing was changed" ;; esac
}

read_options "$@"
check_options
case $mode in
undo_plan)
    undo ;;
undo)
    undo || die "not all could be undone, see above; the rest is still in $journal" ;;
check)
    set_up
    [ $problems -gt 0 ] || { say "Nothing to do."; exit 0; }
    exit 1 ;;
plan)
    set_up
    advise_on_processors ;;
apply)
    if [ $yes = no ]; then
        mode=plan
        set_up
        mode=apply
        [ $problems = 0 ] || ask "Do all that?"
    else
        # Refusals come before the first change.
        mode=plan quiet=yes
        (set_up)
        mode=apply quiet=no
    fi
    set_up
    advise_on_processors
    say
    program=replay-server
    [ ! -x "$repository/.venv/bin/replay-server" ] || program=$repository/.venv/bin/replay-server
    say "Start the server:           sudo $program serve --config $config_folder/$name.toml"
    say "Where it does not start:    sudo $program doctor --config $config_folder/$name.toml" ;;
esac
