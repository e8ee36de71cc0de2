# configuration: the server's and F-Stack's files for this host, and which processor polls.
# shellcheck shell=bash disable=SC2154 # variables are setup_dpdk.sh's

# Of the pages reserved, what DPDK needs beside packets; and what a server needs at least.
PAGES_APART_BYTES=$((128 << 20))
LEAST_BYTES=$((256 << 20))

bytes_of() {
    local number=${1%%[!0-9]*} unit
    unit=${1#"$number"}
    case ${unit,,} in
    ""|b) ;;
    k|kb) number=$((number << 10)) ;;
    m|mb) number=$((number << 20)) ;;
    g|gb) number=$((number << 30)) ;;
    *) number="" ;;
    esac
    [ -n "$number" ] || wrong_usage "expected a size such as 512mb or 2gb, got '$1'"
    echo "$number"
}

page_bytes() { [ "$page_size" = 2M ] && echo $((2 << 20)) || echo $((1 << 30)); }

pages_wanted() {
    local size
    size=$(page_bytes)
    echo "${hugepages:-$(((${memory:-$((1 << 30))} + size - 1) / size))}"
}

# For packets, as the server is told. Nothing where it is to choose: a virtual device takes ordinary memory, of which only
# F-Stack, once it has a file of its own, has to be told.
packet_bytes() {
    local reserved=${memory:-$([ "$transport" = fstack ] && echo $((640 << 20)))}
    reserved=${reserved:-0}
    case $via in vfio|bifurcated) [ -n "$memory" ] || reserved=$(($(pages_wanted) * $(page_bytes))) ;; esac
    [ "$reserved" -lt $LEAST_BYTES ] || echo $((reserved - PAGES_APART_BYTES))
}

to_number() {
    local a b c d
    IFS=. read -r a b c d <<<"$1"
    echo $(((a << 24) + (b << 16) + (c << 8) + d))
}
to_address() { echo "$(($1 >> 24 & 255)).$(($1 >> 16 & 255)).$(($1 >> 8 & 255)).$(($1 & 255))"; }

dpdk_device() {
    case $via in
    af_xdp) echo "net_af_xdp0,iface=$interface,start_queue=0,queue_count=1" ;;
    af_packet) echo "net_af_packet0,iface=$interface" ;;
    *) echo "$pci" ;;
    esac
}

step_password() {
    local file=$config_folder/password secret
    [ "$password" = yes ] || return 0
    if [ -s "$file" ]; then
        have "$file"
        return
    fi
    need "a password in $file"
    make_folder "$config_folder"
    acting || return 0
    secret=$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')
    remember file "$file" "$(sum_of "$secret")"
    (umask 077 && echo "$secret" >"$file")
}

step_configuration() {
    local fstack=$config_folder/$name.fstack.ini access more="" packets
    step_password
    if [ "$password" = yes ]; then access="password_file = \"$config_folder/password\""; else access="allow_remote = true"; fi
    [ -z "$gateway" ] || more+="
dpdk-gateway = \"$gateway\""
    packets=$(packet_bytes)
    [ -z "$packets" ] || more+="
dpdk-memory = $packets"
    if [ "$transport" = fstack ]; then
        more+="
fstack-config = \"$fstack\""
        write_file "$fstack" 644 <<<"$(fstack_configuration)"
    fi
    write_file "$config_folder/$name.toml" 644 <<END
$mark
transport = "$transport"
port = $port
$access

[config]
dpdk-device = "$(dpdk_device)"
dpdk-address = "$address"$more
dpdk-mtu = $mtu
dpdk-lcore = $lcore
admin-port = $admin_port
END
}

# What F-Stack ships, with what made the difference: pkt_tx_delay (shipped: 100 µs a round trip), windows, delacktime, hz, and
# blackhole (a closed port would not answer). Windows may grow until some 256 connections that stand still hold all frames.
fstack_configuration() {
    local bits=${address#*/} number mask allow="" window files=66000
    number=$(to_number "${address%/*}") mask=$((0xffffffff << (32 - bits) & 0xffffffff))
    case $via in vfio|bifurcated) allow="
allow=$pci" ;; esac
    window=$(packet_bytes)
    window=$((window * 1448 / (2 * 2560 * 256)))
    [ $window -ge 262144 ] || window=262144
    cat <<END
$mark
[dpdk]
lcore_mask=$(printf '%x' $((1 << lcore)))
channel=4
promiscuous=0
numa_on=1
tx_csum_offoad_skip=0
tso=1
vlan_strip=1
idle_sleep=0
pkt_tx_delay=0
symmetric_rss=0$allow
port_list=0
nb_vdev=0
nb_bond=0

[pcap]
enable=0

[port0]
addr=${address%/*}
netmask=$(to_address $mask)
broadcast=$(to_address $((number | (~mask & 0xffffffff))))
gateway=${gateway:-0.0.0.0}
lcore_list=$lcore

[freebsd.boot]
hz=1000
fd_reserve=0
kern.maxfiles=$files
kern.maxfilesperproc=$files
kern.ipc.maxsockets=$((2 * files))
net.inet.tcp.syncache.hashsize=4096
net.inet.tcp.syncache.bucketlimit=100
net.inet.tcp.tcbhashsize=65536
kern.ncallout=262144
kern.features.inet6=1

[freebsd.sysctl]
kern.ipc.somaxconn=32768
kern.ipc.maxsockbuf=$((2 * window))
net.add_addr_allfibs=1
net.link.ether.inet.maxhold=5
net.inet.tcp.fast_finwait2_recycle=1
net.inet.tcp.sendspace=262144
net.inet.tcp.recvspace=262144
net.inet.tcp.cc.algorithm=cubic
net.inet.tcp.sendbuf_max=$window
net.inet.tcp.recvbuf_max=$window
net.inet.tcp.sendbuf_auto=1
net.inet.tcp.recvbuf_auto=1
net.inet.tcp.sendbuf_inc=65536
net.inet.tcp.sack.enable=1
net.inet.tcp.blackhole=0
net.inet.tcp.msl=2000
net.inet.tcp.delayed_ack=1
net.inet.tcp.delacktime=1
net.inet.tcp.rfc1323=1
net.inet.udp.blackhole=1
net.inet.ip.redirect=0
net.inet.ip.forwarding=0
net.inet.tcp.functions_default=freebsd
END
}

# ---- processors -----------------------------------------------------------------------------------------------------

# "0-2,5" → 0 1 2 5
expand_list() {
    local part
    for part in ${1//,/ }; do seq "${part%-*}" "${part#*-}"; done | paste -s -d ' '
}

# The last processor of the device's node; of those isolated, where some are.
choose_lcore() {
    local list isolated one
    [ -z "$lcore" ] || return 0
    list=$(cat "$SYSFS/devices/system/node/node$node/cpulist" 2>/dev/null || cat "$SYSFS/devices/system/cpu/online")
    list=$(expand_list "$list") isolated=" $(expand_list "$(cat "$SYSFS/devices/system/cpu/isolated" 2>/dev/null)") "
    for one in $list; do case $isolated in *" $one "*) lcore=$one ;; esac; done
    lcore=${lcore:-${list##* }}
}

advise_on_processors() {
    local online isolated siblings others
    online=$(cat "$SYSFS/devices/system/cpu/online") isolated=$(cat "$SYSFS/devices/system/cpu/isolated" 2>/dev/null || true)
    siblings=$(cat "$SYSFS/devices/system/cpu/cpu$lcore/topology/thread_siblings_list" 2>/dev/null || echo "$lcore")
    siblings=$(expand_list "$siblings")
    others=$(for one in $(expand_list "$online"); do case " $siblings " in *" $one "*) ;; *) echo "$one" ;; esac; done | paste -s -d ,)
    say
    say "Processors: the server polls on $lcore without a pause; now isolated: ${isolated:-none}."
    [ -n "$others" ] || { note "There is no other: this host needs two processors or more, for the server takes one whole."; return 0; }
    case " $(expand_list "$isolated") " in *" $lcore "*) return 0 ;; esac
    note "To keep everything else off it, append to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub and restart:"
    note "isolcpus=managed_irq,domain,${siblings// /,} nohz_full=${siblings// /,} rcu_nocbs=${siblings// /,} irqaffinity=$others"
    [ "$siblings" = "$lcore" ] || note "($siblings are threads of one core: leave the other idle)"
}
