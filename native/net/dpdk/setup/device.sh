# device: what a NIC is (PCI device, interface, driver), and whether this host needs it for itself.
# shellcheck shell=bash disable=SC2154,SC2034 # variables are shared with setup_dpdk.sh

# ---- what the device is ---------------------------------------------------------------------------------------------

readonly LOOPBACK=772 # ARPHRD_LOOPBACK of <linux/if_arp.h>

is_pci_address() { [[ $1 =~ ^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$ ]]; }

driver_of() {
    local link=$SYSFS/bus/pci/devices/$1/driver
    [ ! -e "$link" ] || basename "$(readlink -f "$link")"
}

wait_for_driver() {
    local tries
    for ((tries = 0; tries < 20; tries++)); do
        [ "$(driver_of "$1")" != "$2" ] || return 0
        sleep 0.1
    done
    return 1
}

# The PCI device under an interface: for virtio there is a device of its own between them.
pci_of() {
    local path
    path=$(readlink -f "$SYSFS/class/net/$1/device") || return 0
    while [ -n "$path" ] && [ "$path" != / ]; do
        if is_pci_address "${path##*/}"; then
            echo "${path##*/}"
            return
        fi
        path=${path%/*}
    done
}

interfaces_of() {
    local path
    for path in "$SYSFS/bus/pci/devices/$1"/net/* "$SYSFS/bus/pci/devices/$1"/virtio*/net/*; do
        [ ! -e "$path" ] || echo "${path##*/}"
    done
}

# An interface and all that stand on it: bonds, bridges, VLANs.
with_uppers() {
    local upper
    echo "$1"
    for upper in "$SYSFS/class/net/$1"/upper_*; do
        [ ! -e "$upper" ] || with_uppers "${upper##*/upper_}"
    done
}

users_of_vfio_group() {
    find /proc/[0-9]*/fd -lname "/dev/vfio/$1" 2>/dev/null | sed 's,/proc/\([0-9]*\)/.*,\1,' | sort -u | paste -s -d ' ' || true
}

# Sets pci, interface (the first, or ""), interfaces, driver, via, node.
look_at_device() {
    if is_pci_address "0000:$device"; then device=0000:$device; fi
    if is_pci_address "$device"; then
        pci=$device
        [ -e "$SYSFS/bus/pci/devices/$pci" ] || die "there is no PCI device $pci: lspci -D lists them"
        case $(cat "$SYSFS/bus/pci/devices/$pci/class") in
        0x02*) ;;
        *) die "$pci is no network device: lspci -D -nn says what it is" ;;
        esac
    else
        interface_is_there "$device" || die "there is no interface $device: ip -br link lists them"
        [ "$(cat "$SYSFS/class/net/$device/type" 2>/dev/null)" != "$LOOPBACK" ] || die "$device is the loopback, which nobody reaches: take a NIC, or a veth"
        pci=$(pci_of "$device")
    fi
    interfaces=()
    if [ -n "$pci" ]; then mapfile -t interfaces < <(interfaces_of "$pci"); fi
    [ ${#interfaces[@]} -gt 0 ] || [ "$device" = "$pci" ] || interfaces=("$device")
    interface=${interfaces[0]:-}
    driver=$([ -z "$pci" ] || driver_of "$pci")
    if [ "$via" = auto ]; then
        case $pci/$driver in
        /*) via=af_xdp ;;
        */mlx4_core|*/mlx5_core) via=bifurcated ;;
        *) via=vfio ;;
        esac
    fi
    [ -n "$pci" ] || case $via in
    vfio|bifurcated) die "$device is no PCI device: --via af_xdp or --via af_packet" ;;
    esac
    case $via in
    af_*) [ -n "$interface" ] || die "$device has no interface, its driver is '${driver:-none}': --via $via needs the kernel's driver" ;;
    esac
    # A device that left the kernel cannot be asked: then it is what it was when the file was written.
    mtu=${mtu:-$(cat "$SYSFS/class/net/${interface:-none}/mtu" 2>/dev/null ||
        sed -n 's/^dpdk-mtu = //p' "$config_folder/$name.toml" 2>/dev/null || true)}
    mtu=${mtu:-1500}
    node=$(cat "$SYSFS/bus/pci/devices/$pci/numa_node" 2>/dev/null || echo -1)
}

# ---- refusals -------------------------------------------------------------------------------------------------------

default_route_interfaces() {
    { ip -o -4 route show default; ip -o -6 route show default; } | grep -oE ' dev [^ ]+' | sed 's/ dev //' | sort -u
}

interface_towards() { ip -o route get "$1" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p'; }
addresses_of() { ip -o address show dev "$1" scope global 2>/dev/null | awk '{ print $4 }' || true; }
interface_with() { ip -o address show to "$1" 2>/dev/null | awk '{ print $2 }'; }

# Interfaces that somebody is logged in through. sudo takes SSH_CONNECTION away, but those who called it still have it.
login_interfaces() {
    local process=$$ ours theirs host
    {
        echo "${SSH_CONNECTION:-}"
        while [ "$process" -gt 1 ]; do
            { tr '\0' '\n' <"/proc/$process/environ"; } 2>/dev/null | sed -n 's/^SSH_CONNECTION=//p'
            process=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$process/status" 2>/dev/null) || process=0
            process=${process:-0}
        done
    } | sort -u | while read -r theirs _ ours _; do
        [ -z "$ours" ] || { interface_with "${ours%%\%*}"; interface_towards "${theirs%%\%*}"; }
    done
    who 2>/dev/null | sed -n 's/.*(\([^():]*\).*)$/\1/p' | sort -u | while read -r host; do
        host=$(getent ahosts "$host" | awk 'NR == 1 { print $1 }')
        [ -z "$host" ] || interface_towards "$host"
    done
}

refuse_what_is_in_use() {
    local routes logins addresses one carrier
    [ ${#interfaces[@]} -gt 0 ] || return 0
    routes=$(default_route_interfaces) || true
    logins=$(login_interfaces | sort -u) || true
    for one in "${interfaces[@]}"; do
        for carrier in $(with_uppers "$one"); do
            if [ "$take_default_route" = no ] && grep -qxF -- "$carrier" <<<"$routes"; then
                refuse "$carrier carries the default route: without it this host is cut off. Take another device, or, with another way in (a console), --take-default-route"
            fi
            if [ "$take_login" = no ] && grep -qxF -- "$carrier" <<<"$logins"; then
                refuse "somebody is logged in through $carrier: the connection would end. Take another device, or come in another way, or --take-login"
            fi
            addresses=$(addresses_of "$carrier" | paste -s -d ' ')
            if [ "$take_address" = no ] && [ -n "$addresses" ]; then
                refuse "$carrier has an address ($addresses), so that this host uses it: take it off (ip address del … dev $carrier, and from the network's configuration), or --take-address"
            fi
        done
    done
}

refuse_address_of_kernel() {
    local where one
    [ -n "$address" ] || return 0
    where=$(interface_with "${address%/*}" | sort -u) || true
    for one in $where; do
        [ "$one" != "$interface" ] || [ "$take_address" = no ] || continue
        refuse "this host's kernel has ${address%/*} already, on $one: both would answer. Take another --address"
    done
}

# What the driver and the stack carry; the server says the same, later.
refuse_mtu() {
    local carrier=$via most=9600
    case $via in
    af_xdp) most=3300 ;;
    af_packet) most=1500 ;;
    esac
    if [ "$transport" = fstack ] && [ $most -gt 1500 ]; then carrier=F-Stack most=1500; fi
    [ "$mtu" -le $most ] || refuse "$carrier carries an mtu of at most $most bytes, got $mtu: say --mtu $most, or less"
    [ "$mtu" -ge 576 ] || refuse "an mtu of at least 576 bytes is needed, got $mtu: say --mtu 1500"
}
