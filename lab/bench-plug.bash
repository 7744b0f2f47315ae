# Start and shutdown of VMs with disks on raw files and on logical volumes, by xy and by xl in turn in one boot:
# bench-plug.bash [ROUNDS [SIZES [VMS [SIZES_ON_LVM]]]]. Prints `SAMPLE TOOL-WHAT-DISKS SECONDS`. What a tool cannot do is told and has no
# sample.
#
#   start      `create` has ended: the backends know all disks, the guest runs
#   connected  since the same moment: the guest has connected all its disks
#   stop       from the request until domain, backends and loop devices are gone; the guest closes its disks first
. /lab/lib.sh
rounds=${1:-3}
sizes=${2:-1 8 32 128 255}
many=${3:-20}
sizes_on_lvm=${4:-8 32}
patience=240

start_xylemd
mkdir -p /disks
for number in $(seq 0 254); do truncate -s 1M "/disks/$number.raw"; done

# vdev NUMBER: xvda, xvdb, and on to xvdiv.
vdev() {
    local letters=abcdefghijklmnopqrstuvwxyz
    if [ "$1" -lt 26 ]; then
        echo "xvd${letters:$1:1}"
    else
        echo "xvd${letters:$(($1 / 26 - 1)):1}${letters:$(($1 % 26)):1}"
    fi
}

clock() { now=${EPOCHREALTIME/./}; }
# sample NAME: seconds since $begin.
sample() {
    clock
    local us=$((now - begin))
    printf 'SAMPLE %s %d.%06d\n' "$1" $((us / 1000000)) $((us % 1000000))
}

# wide_cfg NAME FIRST DISKS [KIND]: a guest with that many disks, the first of them of that number.
wide_cfg() {
    local name=$1 list='' number
    for number in $(seq 0 $(($3 - 1))); do
        case ${4:-file} in
            file) list="$list'/disks/$(($2 + number)).raw,raw,$(vdev "$number"),w'," ;;
            vdi) list="$list'g:d$number,,$(vdev "$number"),w'," ;;
            phy) list="$list'phy:/dev/xylem-g/vdi-d$number,$(vdev "$number"),w'," ;;
        esac
    done
    unikernel_cfg "$name" "type = 'pv'" "disk = [$list]" "extra = 'xylem.quiet'"
    sed -i 's,/guest/unikernel,/guest/unikernel-wide,' "/tmp/$name.cfg"
}

backends() { xenstore-ls /local/domain/0/backend/vbd 2>/dev/null; }
connected() { [ "$(backends | grep -c ' state = "4"')" = "$1" ]; }
# Nothing of any VM is left, and xl's own processes have ended.
gone() { [ -z "$(backends)" ] && [ "$(xenstore-list /local/domain | wc -l)" = 1 ] && ! grep -qs ^/disks/ /sys/block/loop*/loop/backing_file && ! pidof xl >/dev/null; }

# await COMMAND...: until it succeeds, looked at every 10 ms; the look itself costs both tools the same.
await() {
    local deadline=$((SECONDS + patience))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.01
    done
}

give_up() { # TOOL WHAT
    echo "$1 cannot start $2: $(grep -i 'error\|xy:' /results/plug.log | head -n 1 | cut -c 1-150)"
    cp /results/plug.log "/results/failed-$1-${2// /-}.log"
    for vm in $($1 list | awk 'NR > 2 { print $1 }'); do timeout 120 "$1" destroy "$vm" >/dev/null 2>&1; done
    await gone || { xl list; backends | head -n 20; losetup -a | head -n 20; fail "something is left of what $1 could not start"; }
}

# measure TOOL DISKS NAME [KIND]
measure() {
    local tool=$1 disks=$2 name=$3 stages=''
    [ "$tool" = xl ] || stages=--stages
    wide_cfg plug 0 "$disks" "${4:-file}"
    clock
    begin=$now
    if ! timeout $patience "$tool" create $stages /tmp/plug.cfg >/results/plug.log 2>&1; then
        give_up "$tool" "a VM with $disks disks"
        return 1
    fi
    sample "$tool-start-$name"
    [ "$tool" = xl ] || cp /results/plug.log "/results/stages-$name"
    await connected "$disks" || fail "$tool: of $disks disks $(backends | grep -c ' state = "4"') are connected"
    sample "$tool-connected-$name"
    clock
    begin=$now
    timeout $patience "$tool" shutdown -w plug >/results/plug.log 2>&1 || fail "$tool shutdown: $(tail -n 1 /results/plug.log)"
    await gone || fail "$tool: something is left: $(xl list; backends | head -n 5; losetup -a | head -n 5)"
    sample "$tool-stop-$name"
    [ "$tool" = xl ] || xy trace plug >"/results/stop-$name" 2>&1
}

# measure_many TOOL: VMs with 8 disks each, all asked for at once.
measure_many() {
    local tool=$1 vm jobs=''
    for vm in $(seq "$many"); do wide_cfg "plug$vm" $(((vm - 1) * 8)) 8; done
    clock
    begin=$now
    for vm in $(seq "$many"); do
        timeout $patience "$tool" create "/tmp/plug$vm.cfg" >"/results/plug$vm.log" 2>&1 &
        jobs="$jobs $!"
    done
    for vm in $jobs; do wait "$vm" || failed=1; done
    if [ "$failed" = 1 ]; then
        cat /results/plug*.log >/results/plug.log
        failed=0
        give_up "$tool" "$many VMs with 8 disks each"
        return 1
    fi
    sample "$tool-start-many"
    await connected $((many * 8)) || fail "$tool: of $((many * 8)) disks $(backends | grep -c ' state = "4"') are connected"
    sample "$tool-connected-many"
    clock
    begin=$now
    timeout $patience "$tool" shutdown -a >/results/plug.log 2>&1 || fail "$tool shutdown -a: $(tail -n 1 /results/plug.log)"
    await gone || fail "$tool: something is left: $(xl list; backends | head -n 5)"
    sample "$tool-stop-many"
}

# What is done once per boot is done; xl leaves directories in the store.
measure xl 1 warm
measure xy 1 warm
host_state >/tmp/state.before
declare -A cannot
for disks in $sizes; do
    for round in $(seq "$rounds"); do
        for tool in xy xl; do
            [ -z "${cannot[$tool]}" ] || continue
            # xl needs seconds for each disk: often enough is once.
            [ $tool = xy ] || [ "$round" = 1 ] || [ "$disks" -le 8 ] || continue
            measure $tool "$disks" "$disks" || cannot[$tool]=$disks
        done
    done
done
[ -z "${cannot[xy]}" ] || fail "xy could not start a VM with ${cannot[xy]} disks"
for tool in xy xl; do measure_many $tool; done
check "nothing is left of all these" same_state /tmp/state.before

# Logical volumes. xy activates those that a VM needs, and lets them go; for xl all are active all the time.
modprobe -a ext4 dm-mod || fail "no device mapper"
mkdir -p /run/lock/lvm /etc/lvm
truncate -s 192M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
xy sr-create g lvm "device=$disk" || fail "sr-create"
for number in $(seq 0 31); do xy vdi-create "g:d$number" 4M || fail "vdi-create"; done
all_volumes() {
    lvm vgchange --config "activation{udev_sync=0 udev_rules=0} devices{obtain_device_list_from_udev=0}" "$1" -K xylem-g >/results/lvm.log 2>&1 ||
        fail "vgchange $1: $(tail -n 1 /results/lvm.log)"
}
for disks in $sizes_on_lvm; do
    for round in $(seq "$rounds"); do
        measure xy "$disks" "lvm-$disks" vdi || fail "xy cannot start a VM on LVM"
        [ "$round" = 1 ] || [ "$disks" -le 8 ] || continue
        all_volumes -ay
        measure xl "$disks" "lvm-$disks" phy
        all_volumes -an
    done
done
true
