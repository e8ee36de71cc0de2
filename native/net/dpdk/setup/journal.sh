# journal: what the set-up says and does, each change written down before it is made, and how it is undone.
# shellcheck shell=bash disable=SC2154 # its variables are setup_dpdk.sh's

# ---- saying ---------------------------------------------------------------------------------------------------------

die() {
    echo "setup_dpdk.sh: $*" >&2
    exit 1
}

wrong_usage() {
    echo "setup_dpdk.sh: $* (see --help)" >&2
    exit 2
}

say() { [ "$quiet" = yes ] || echo "$*"; }
note() { say "      $*"; }
have() { say "ok    $*"; }

# What is to be done next, or with --check what is missing.
need() {
    problems=$((problems + 1))
    say "todo  $*"
}

# A state that this script cannot change.
refuse() {
    [ "$mode" = check ] || die "$*"
    problems=$((problems + 1))
    say "fail  $*"
}

acting() { [ "$mode" = apply ] || [ "$mode" = undo ]; }
planning() { [ "$mode" = plan ] || [ "$mode" = undo_plan ]; }

# ---- doing, and what undoes it --------------------------------------------------------------------------------------

# remember KIND ARGUMENT...: before a change; --undo calls undo_KIND ARGUMENT...
remember() {
    acting || return 0
    mkdir -p "$STATE"
    (IFS=$'\t' && echo "$*") >>"$journal"
}

forget_last() { sed -i '$d' "$journal"; }

# run COMMAND ARGUMENT...; `hint` says more where it fails.
run() {
    if acting; then
        note "$*"
        case $1 in ethtool) "$@" >/dev/null ;; *) "$@" ;; esac || die "this failed: $*${hint:+: $hint}"
    elif planning; then
        note "would run: $*"
    fi
}

# store VALUE FILE: into a file of the kernel's
store() {
    if acting; then
        note "echo $1 > $2"
        # The kernel's answer is the error of the write.
        { echo "$1" >"$2"; } 2>/dev/null || die "the kernel refused '$1' in $2"
    elif planning; then
        note "would run: echo $1 > $2"
    fi
}

# write_file FILE PERMISSIONS < CONTENT; one that somebody else wrote, or changed, is not touched.
write_file() {
    local file=$1 permissions=$2 content
    content=$(cat)
    if [ -r "$file" ] && [ "$(cat "$file")" = "$content" ]; then
        have "$file"
        return
    fi
    if [ -e "$file" ] && ! grep -qF "file"$'\t'"$file"$'\t'"$(sum "$file")" "$journal" 2>/dev/null; then
        refuse "$file is there and not as this script wrote it: move it away, or take another --name"
        return
    fi
    need "write $file"
    make_folder "$(dirname "$file")"
    if acting; then
        remember file "$file" "$(sum_of "$content")"
        (umask 077 && echo "$content" >"$file")
        chmod "$permissions" "$file"
    elif planning; then
        note "would write $file (permissions $permissions):"
        [ "$quiet" = yes ] || while IFS= read -r line; do echo "          $line"; done <<<"$content"
    fi
}

make_folder() {
    [ ! -d "$1" ] || return 0
    remember folder "$1"
    run mkdir -p "$1"
}

sum_of() { echo "$1" | sha256sum | cut -d ' ' -f 1; }
sum() { sha256sum <"$1" 2>/dev/null | cut -d ' ' -f 1; }

# add_line FILE LINE: to a file of the system's
add_line() {
    if [ -r "$1" ] && grep -qxF -- "$2" "$1"; then
        have "$1: $2"
        return
    fi
    need "add to $1: $2"
    make_folder "$(dirname "$1")"
    if acting; then
        [ -e "$1" ] || remember empty "$1"
        remember line "$1" "$2"
        echo "$2" >>"$1"
    elif planning; then
        note "would append to $1: $2"
    fi
}

# ---- undoing --------------------------------------------------------------------------------------------------------

undo_file() {
    local file=$1
    if [ ! -e "$file" ]; then return 0; fi
    if [ "$(sum "$file")" != "$2" ]; then
        say "      $file was changed since: it stays"
        return 0
    fi
    run rm "$file"
}

undo_folder() { [ ! -d "$1" ] || run rmdir --ignore-fail-on-non-empty "$1"; }

undo_line() {
    local file=$1 rest
    [ -e "$file" ] || return 0
    note "remove from $file: $2"
    acting || return 0
    rest=$(grep -vxF -- "$2" "$file") || true
    if [ -n "$rest" ]; then echo "$rest" >"$file"; else : >"$file"; fi
}

# A file that was not there before lines were added to it.
undo_empty() { [ ! -e "$1" ] || [ -s "$1" ] || run rm "$1"; }

# Pages that this script added and nobody uses; the kernel keeps those in use.
undo_pages() {
    local folder=$1 added=$2 total free
    [ "$added" -gt 0 ] || return 0
    [ -e "$folder/nr_hugepages" ] || return 0
    total=$(cat "$folder/nr_hugepages") free=$(cat "$folder/free_hugepages")
    [ "$total" -ge "$added" ] || added=$total
    if [ "$free" -lt "$added" ]; then
        echo "setup_dpdk.sh: $((added - free)) of the $added pages of $folder are in use: stop the servers that use them" >&2
        return 1
    fi
    store $((total - added)) "$folder/nr_hugepages"
}

# Back to the kernel's driver.
undo_driver() {
    local pci=$1 previous=$2 path=$SYSFS/bus/pci/devices/$1 current
    [ -e "$path" ] || return 0
    current=$(driver_of "$pci")
    # An empty line takes the override off.
    store "" "$path/driver_override"
    [ "$current" != "$previous" ] || return 0
    [ -z "$current" ] || store "$pci" "$path/driver/unbind"
    [ "$previous" != none ] || return 0
    store "$pci" "$SYSFS/bus/pci/drivers_probe"
    acting || return 0
    wait_for_driver "$pci" "$previous" && return 0
    echo "setup_dpdk.sh: $pci did not go back to $previous: modprobe $previous; echo $pci > $SYSFS/bus/pci/drivers_probe" >&2
    return 1
}

undo_parameter() { [ ! -e "$1" ] || store "$2" "$1"; }

interface_is_there() { [ -e "$SYSFS/class/net/$1" ]; }

undo_address() {
    interface_is_there "$1" || { note "$1 is not there: its address $2 is not given back"; return 0; }
    run ip address replace "$2" dev "$1"
}
undo_down() { ! interface_is_there "$1" || run ip link set dev "$1" down; }
undo_up() { ! interface_is_there "$1" || run ip link set dev "$1" up; }
undo_offloads() { ! interface_is_there "$1" || run ethtool -K "$@"; }
undo_queues() { ! interface_is_there "$1" || run ethtool -L "$1" "$2" "$3"; }
undo_mtu() { ! interface_is_there "$1" || run ip link set dev "$1" mtu "$2"; }

# To take a device away from a process would wait for it, inside the kernel. So this is asked before anything is undone.
refuse_devices_in_use() {
    local kind pci group users in_use=0
    while IFS=$'\t' read -r kind pci _; do
        if [ "$kind" != driver ] || [ "$(driver_of "$pci")" != vfio-pci ]; then continue; fi
        group=$(basename "$(readlink -f "$SYSFS/bus/pci/devices/$pci/iommu_group")")
        users=$(users_of_vfio_group "$group")
        [ -n "$users" ] || continue
        echo "setup_dpdk.sh: $pci is in use by process $users: stop it first; nothing was undone" >&2
        in_use=1
    done <"$journal"
    return $in_use
}

undo() {
    local line kind arguments failed=0
    local -a lines
    [ -r "$journal" ] || { echo "setup_dpdk.sh: nothing to undo: there is no $journal"; return 0; }
    refuse_devices_in_use || return 1
    mapfile -t lines <"$journal"
    for ((line = ${#lines[@]} - 1; line >= 0; line--)); do
        IFS=$'\t' read -r kind arguments <<<"${lines[line]}"
        case $kind in
        file|folder|line|empty|pages|driver|parameter|address|down|up|offloads|queues|mtu) ;;
        *) die "$journal: line $((line + 1)): '$kind' is not of this version of the script" ;;
        esac
        IFS=$'\t' read -ra arguments <<<"$arguments"
        say "undo  $kind ${arguments[*]}"
        # In a subshell: one that fails keeps its line for the next time, and the others are undone.
        if ("undo_$kind" "${arguments[@]}"); then unset "lines[line]"; else failed=1; fi
    done
    acting || return 0
    if [ ${#lines[@]} -gt 0 ]; then printf '%s\n' "${lines[@]}" >"$journal"; else rm "$journal"; fi
    rmdir --ignore-fail-on-non-empty "$STATE" 2>/dev/null || true
    return $failed
}
