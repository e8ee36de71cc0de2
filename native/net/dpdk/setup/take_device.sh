# take_device: the steps of the set-up: packages, hugepages, IOMMU, drivers, the interface, the build. Each says what is
# there, or does what is to do.
# shellcheck shell=bash disable=SC2154 # variables are setup_dpdk.sh's

step_packages() {
    local package missing=() wanted=(libdpdk-dev pkg-config iproute2 ethtool make)
    case $via in vfio) wanted+=(dpdk pciutils kmod) ;; esac
    grep -qE '^(ID|ID_LIKE)=.*(debian|ubuntu)' /etc/os-release 2>/dev/null ||
        refuse "this is neither Debian nor Ubuntu: install ${wanted[*]}, or what they are called here, and DPDK ≥ 22.11"
    for package in "${wanted[@]}"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || { have "packages: ${wanted[*]}"; return 0; }
    need "packages: ${missing[*]}"
    run apt-get update -q
    run env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

step_hugepages() {
    local kilobytes=2048 folder total free wanted others
    case $via in af_*) have "hugepages: not needed by $via"; return 0 ;; esac
    [ "$page_size" = 2M ] || kilobytes=1048576
    wanted=$(pages_wanted)
    folder=$SYSFS/kernel/mm/hugepages/hugepages-${kilobytes}kB
    if [ "$node" -ge 0 ] && [ -e "$SYSFS/devices/system/node/node1" ]; then
        folder=$SYSFS/devices/system/node/node$node/hugepages/hugepages-${kilobytes}kB
    fi
    [ -e "$folder/nr_hugepages" ] || { refuse "this kernel has no pages of $page_size ($folder): --page-size"; return 0; }
    total=$(cat "$folder/nr_hugepages") free=$(cat "$folder/free_hugepages")
    others=$(pages_of_others "$folder")
    # Of the pages in use now, some may be those of the other servers.
    [ $((total - free)) -ge "$others" ] || free=$((total - others))
    if [ "$total" -ge $((wanted + others)) ] && grep -qs "^pages"$'\t'"$folder"$'\t'"[0-9]*"$'\t'"$name $wanted\$" "$journal"; then
        have "hugepages: $wanted of $page_size were reserved for $name before, $(cat "$folder/free_hugepages") are free now"
    elif [ "$free" -ge "$wanted" ]; then
        have "hugepages: $free of $page_size free, $wanted needed"
        remember pages "$folder" 0 "$name $wanted"
    else
        need "hugepages: $free of $page_size free$([ "$others" = 0 ] || echo ", beside $others for other servers"), $wanted needed"
        reserve_pages "$folder" $((wanted - free)) "$total" "$name $wanted"
        keep_pages "$folder/nr_hugepages" $((total + wanted - free))
    fi
}

# What was reserved for servers of other names, the last word of each.
pages_of_others() {
    awk -F '\t' -v folder="$1" -v ours="$name" '
        $1 == "pages" && $2 == folder { split($4, words, " "); pages[words[1]] = words[2] }
        END { for (other in pages) if (other != ours) sum += pages[other]; print sum + 0 }' "$journal" 2>/dev/null || echo 0
}

reserve_pages() {
    local folder=$1 added=$2 total=$3 got
    remember pages "$folder" "$added" "$4"
    store $((total + added)) "$folder/nr_hugepages"
    acting || return 0
    got=$(cat "$folder/nr_hugepages")
    [ "$got" -lt $((total + added)) ] || return 0
    echo "$total" >"$folder/nr_hugepages"
    forget_last
    die "only $((got - total)) of $added pages of $page_size could be had, for memory is short or in pieces: ask for less, or reserve them when the host starts, on the kernel's command line: hugepagesz=$page_size hugepages=$((total + added))"
}

# At every start of the host, by systemd-tmpfiles. One file for all servers: its lines are totals, one a node and page size.
keep_pages() {
    local file=$ETC/tmpfiles.d/replay-server-hugepages.conf others=""
    [ ! -r "$file" ] || others=$(grep '^w ' "$file" | grep -vF "w $1 ") || true
    write_file "$file" 644 <<<"$mark${others:+
$others}
w $1 - - - - $2"
}

# Whether this kernel's vfio can do without an IOMMU: where it was built without CONFIG_VFIO_NOIOMMU, as Debian's is, modprobe
# passes over the parameter and says nothing.
has_no_iommu_mode() {
    [ -e "$SYSFS/module/vfio/parameters/enable_unsafe_noiommu_mode" ] && return 0
    [ ! -e "$SYSFS/module/vfio" ] && modinfo -p vfio 2>/dev/null | grep -q '^enable_unsafe_noiommu_mode:'
}

iommu_is_on() { [ -n "$(ls "$SYSFS/kernel/iommu_groups" 2>/dev/null)" ]; }

step_iommu() {
    local parameter=$SYSFS/module/vfio/parameters/enable_unsafe_noiommu_mode other
    if iommu_is_on && [ -e "$SYSFS/bus/pci/devices/$pci/iommu_group" ]; then
        have "IOMMU: on, $pci is in group $(basename "$(readlink -f "$SYSFS/bus/pci/devices/$pci/iommu_group")")"
        for other in "$SYSFS/bus/pci/devices/$pci"/iommu_group/devices/*; do
            other=${other##*/}
            case $(cat "$SYSFS/bus/pci/devices/$other/class") in 0x0604*) continue ;; esac # a bridge
            case $other/$(driver_of "$other") in "$pci"/*|*/|*/vfio-pci) continue ;; esac
            refuse "$pci shares its IOMMU group with $other ($(driver_of "$other")), and vfio gives out whole groups: give $other to vfio-pci as well (dpdk-devbind.py -b vfio-pci $other), or put the card into another slot"
        done
        return
    fi
    if ! has_no_iommu_mode; then
        refuse "there is no IOMMU for $pci, and this kernel's vfio cannot do without one (it was built without CONFIG_VFIO_NOIOMMU): switch on VT-d or AMD-Vi in the firmware, put intel_iommu=on iommu=pt (AMD: iommu=pt) on the kernel's command line, and restart. Where there is none (many virtual machines): --via af_packet, or --via af_xdp if the driver has XDP"
        return
    fi
    if [ "$no_iommu" = no ]; then
        refuse "there is no IOMMU for $pci: switch on VT-d or AMD-Vi in the firmware, put intel_iommu=on iommu=pt (AMD: iommu=pt) on the kernel's command line, and restart. Where there is none (many virtual machines): --via af_packet, or --no-iommu, and then the device may write to all memory"
        return
    fi
    if [ "$(cat "$parameter" 2>/dev/null)" = Y ]; then
        have "vfio without IOMMU is allowed"
        return
    fi
    need "allow vfio without IOMMU: the device may then write to all memory, and the kernel counts as tainted"
    if [ -e "$parameter" ]; then
        remember parameter "$parameter" N
        store Y "$parameter"
    else
        run modprobe vfio enable_unsafe_noiommu_mode=1
        if acting && [ ! -e "$parameter" ]; then die "vfio was loaded, but without its parameter enable_unsafe_noiommu_mode: this kernel cannot do without an IOMMU. Nothing was taken from the kernel; --via af_packet works"; fi
        remember parameter "$parameter" N
    fi
    write_file "$ETC/modprobe.d/replay-server-vfio.conf" 644 <<<"$mark
options vfio enable_unsafe_noiommu_mode=1"
}

step_vfio() {
    if [ -e "$SYSFS/bus/pci/drivers/vfio-pci" ]; then
        have "driver vfio-pci"
    else
        need "driver vfio-pci"
        hint="this kernel has no vfio-pci; Ubuntu's cloud kernels have it in linux-modules-extra-$(uname -r)" run modprobe vfio-pci
    fi
    write_file "$ETC/modules-load.d/replay-server-vfio.conf" 644 <<<"$mark
vfio-pci"
}

step_bind() {
    local path=$SYSFS/bus/pci/devices/$pci one given
    if [ "$driver" = vfio-pci ]; then
        have "$pci belongs to vfio-pci"
    else
        need "$pci belongs to '${driver:-no driver}': give it to vfio-pci"
        for one in "${interfaces[@]}"; do
            for given in $(addresses_of "$one"); do remember address "$one" "$given"; done
        done
        remember driver "$pci" "${driver:-none}"
        store vfio-pci "$path/driver_override"
        [ -z "$driver" ] || store "$pci" "$path/driver/unbind"
        store "$pci" "$SYSFS/bus/pci/drivers_probe"
        if acting && ! wait_for_driver "$pci" vfio-pci; then die "vfio-pci did not take $pci: dmesg | tail says why; --undo gives it back"; fi
    fi
    # Debian's and Ubuntu's package dpdk binds what stands in this file when the host starts.
    add_line "$ETC/dpdk/interfaces" "pci $pci vfio-pci"
}

# A device that stays with the kernel's driver and carries frames for us alone.
step_interface() {
    local one now
    now=$(cat "$SYSFS/class/net/$interface/mtu")
    if [ "$mtu" != "$now" ]; then
        need "$interface has an mtu of $now"
        remember mtu "$interface" "$now"
        run ip link set dev "$interface" mtu "$mtu"
    fi
    for one in $(addresses_of "$interface"); do
        need "take $one off $interface: the kernel would answer too"
        remember address "$interface" "$one"
        run ip address del "$one" dev "$interface"
    done
    [ "$via" != af_xdp ] || leave_one_queue
    if [ -z "$pci" ]; then switch_offloads_off; elif [ "$via" = af_packet ]; then switch_gro_off; fi
    if ip -o link show dev "$interface" | grep -q '[<,]UP[,>]'; then
        have "$interface is up"
    else
        need "$interface is down"
        remember down "$interface"
        run ip link set dev "$interface" up
    fi
}

# AF_XDP reads one of the queues that the device spreads frames over. Drivers call them combined, or rx where they come alone.
leave_one_queue() {
    local kind count
    for kind in rx combined; do
        count=$(ethtool -l "$interface" 2>/dev/null | sed -n "s/^$kind:[[:space:]]*//Ip" | tail -n 1) || true
        [[ $count =~ ^[0-9]+$ ]] || continue
        [ "$count" -gt 1 ] || continue
        need "$interface spreads frames over $count queues, the server reads one"
        remember queues "$interface" $kind "$count"
        run ethtool -L "$interface" $kind 1
    done
}

# A virtual device hands on checksums and segments that are not finished, for the next one to do: nobody would.
switch_offloads_off() {
    local feature words on=() off=()
    for feature in tx rx sg tso gso gro; do
        if [ "$(offload "$feature")" = on ]; then on+=("$feature" on) off+=("$feature" off); fi
    done
    if [ ${#on[@]} -gt 0 ]; then
        words="${on[*]}"
        need "$interface: switch off ${words// on/}"
        remember offloads "$interface" "${on[@]}"
        run ethtool -K "$interface" "${off[@]}"
    fi
    note "the other end of a veth needs the same: ethtool -K IF tx off rx off sg off tso off gso off gro off"
}

# A packet socket is given frames that the kernel has joined, which are longer than its ring's places.
switch_gro_off() {
    [ "$(offload gro)" = on ] || return 0
    need "$interface: switch off gro"
    remember offloads "$interface" gro on
    run ethtool -K "$interface" gro off
}

# on or off; nothing where the interface has no such feature
offload() {
    local long
    case $1 in
    tx) long=tx-checksumming ;;
    rx) long=rx-checksumming ;;
    sg) long=scatter-gather ;;
    tso) long=tcp-segmentation-offload ;;
    gso) long=generic-segmentation-offload ;;
    gro) long=generic-receive-offload ;;
    esac
    ethtool -k "$interface" 2>/dev/null | sed -n "s/^$long: \(on\|off\)\( \[fixed\]\)\{0,1\}\$/\1\2/p"
}

built() {
    [ -x "$repository/.venv/bin/python" ] && "$repository/.venv/bin/python" - "$transport" >/dev/null 2>&1 <<'END'
import sys
from replay_server.server import find_executable
find_executable(sys.argv[1])
END
}

step_build() {
    local owner as=()
    [ "$build" = yes ] || return 0
    if built; then
        have "replay-server with transport $transport"
        return
    fi
    if [ "$transport" = fstack ] && [ ! -e "${FF_PATH:-/nonexistent}/lib/libfstack.a" ] && ! pkg-config --exists libfstack 2>/dev/null; then
        refuse "F-Stack is not there: install it as its own README says (https://github.com/F-Stack/f-stack; tested: 1.24 on DPDK 22.11), set FF_PATH to its folder, and come again; or --transport dpdk, or --no-build"
        return
    fi
    need "build replay-server with transport $transport"
    owner=$(stat -c %U "$repository")
    [ "$(id -u)" != 0 ] || [ "$owner" = root ] || as=(runuser -u "$owner" --)
    run "${as[@]}" make -C "$repository" lwip
    if acting && ! built; then die "make lwip did not build the transport $transport: see above"; fi
}
