# Start and shutdown of VMs with disks on raw files and on logical volumes, by xy and by xl in turn in one boot:
# bench-plug.bash [ROUNDS [SIZES [VMS [SIZES_ON_LVM [SECONDS]]]]]. Prints `SAMPLE TOOL-WHAT-DISKS SECONDS`. What xl
# has not done after SECONDS is stopped, and told as `BOUND`; what it failed to do as `FAILED`; with the seconds until then.
#
#   start      `create` has ended: the backends know all disks, the guest runs
#   connected  since the same moment: the guest has connected all its disks
#   stop       from the request until domain, backends and loop devices are gone; the guest closes its disks first
. /lab/lib.sh
rounds=${1:-3}
sizes=${2:-1 8 32 128 255}
many=${3:-20}
sizes_on_lvm=${4:-8 32}
# xl needs seconds for each disk.
limit=${5:-300}

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
# tell WORD NAME: seconds since $begin.
tell() {
    clock
    local us=$((now - begin))
    printf '%s %s %d.%06d\n' "$1" "$2" $((us / 1000000)) $((us % 1000000))
}
sample() { tell SAMPLE "$1"; }

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
    local deadline=$((SECONDS + limit))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 124
        sleep 0.01
    done
}

# Whether nobody is measured any more after what is under way.
is_last=
# gave_up STATUS TOOL VERB NAME: ours must not; what xl could not do is told, taken away, and not tried again.
given_up=
gave_up() {
    local word=FAILED line
    # By its own end, or by ours.
    case $1 in 124 | 143) word=BOUND ;; esac
    tell $word "$2-$3-$4"
    line=$(grep -ai 'error\|xy:' /results/plug.log | head -n 1 | cut -c 1-150)
    echo "$2 $3 $4 ended with $1: $line"
    cp /results/plug.log "/results/gave-up-$2-$3-$4.log"
    [ "$2" = xl ] || fail "$2 $3 $4"
    given_up="$given_up $4 "
    [ -n "$is_last" ] || sweep
}

# sweep: takes away what xl began, as an operator would; its scripts may hang.
sweep() {
    local pid domid uuid
    for pid in $(pidof xl) $(pids_of 'xen/scripts/bloc[k]'); do kill -9 "$pid" 2>/dev/null; done
    rm -rf /run/xen-hotplug /var/run/xen-hotplug
    for domid in $(xl list | awk 'NR > 2 { print $2 }'); do
        uuid=$(xenstore-read "/local/domain/$domid/vm" 2>/dev/null)
        timeout 60 xl destroy "$domid" >/dev/null 2>&1
        for pid in $(pidof xl) $(pids_of 'xen/scripts/bloc[k]'); do kill -9 "$pid" 2>/dev/null; done
        xenstore-rm "/local/domain/0/backend/vbd/$domid" "/local/domain/$domid" "/libxl/$domid" "${uuid:-/none}" 2>/dev/null
    done
    for pid in $(xenstore-list /local/domain/0/backend/vbd 2>/dev/null); do xenstore-rm "/local/domain/0/backend/vbd/$pid"; done
    for loop in $(grep -ls ^/disks/ /sys/block/loop*/loop/backing_file | cut -d / -f 4); do losetup -d "/dev/$loop"; done
    limit=60 await gone || { xl list; backends | head -n 20; losetup -a | head -n 20; fail "something is left of what xl could not do"; }
    host_state >/tmp/state.before
}

# measure TOOL DISKS NAME [KIND]
measure() {
    local tool=$1 disks=$2 name=$3 stages=''
    case "$tool $given_up" in "xl "*" $name "*) return ;; esac
    [ "$tool" = xl ] || stages=--stages
    wide_cfg plug 0 "$disks" "${4:-file}"
    clock
    begin=$now
    # shellcheck disable=SC2086 # one word or none
    timeout "$limit" "$tool" create $stages /tmp/plug.cfg >/results/plug.log 2>&1 || { gave_up $? "$tool" start "$name"; return 1; }
    sample "$tool-start-$name"
    [ "$tool" = xl ] || cp /results/plug.log "/results/stages-$name"
    await connected "$disks" || { gave_up $? "$tool" connected "$name"; return 1; }
    sample "$tool-connected-$name"
    clock
    begin=$now
    timeout "$limit" "$tool" shutdown -w plug >/results/plug.log 2>&1 || { gave_up $? "$tool" stop "$name"; return 1; }
    await gone || { gave_up $? "$tool" stop "$name"; return 1; }
    sample "$tool-stop-$name"
    [ "$tool" = xl ] || xy trace plug >"/results/stop-$name" 2>&1
}

# measure_many TOOL: VMs with 8 disks each, all asked for at once.
measure_many() {
    local tool=$1 vm jobs='' status=0
    for vm in $(seq "$many"); do wide_cfg "plug$vm" $(((vm - 1) * 8)) 8; done
    clock
    begin=$now
    for vm in $(seq "$many"); do
        timeout "$limit" "$tool" create "/tmp/plug$vm.cfg" >"/results/plug$vm.log" 2>&1 &
        jobs="$jobs $!"
    done
    for vm in $jobs; do wait "$vm" || status=$?; done
    cat /results/plug[0-9]*.log >/results/plug.log
    [ $status = 0 ] || { gave_up $status "$tool" start many; return 1; }
    sample "$tool-start-many"
    await connected $((many * 8)) || { gave_up $? "$tool" connected many; return 1; }
    sample "$tool-connected-many"
    clock
    begin=$now
    timeout "$limit" "$tool" shutdown -a >/results/plug.log 2>&1 || { gave_up $? "$tool" stop many; return 1; }
    await gone || { gave_up $? "$tool" stop many; return 1; }
    sample "$tool-stop-many"
}

# same_but_folders: nothing is left, but for folders of xl's in the store, which each of the two makes and removes as it likes.
same_but_folders() {
    same_state /tmp/state.before >/tmp/state.diff
    ! grep '^[-+][^-+]' /tmp/state.diff | grep -v '^.\(/vm\|/libxl\|/local/domain/0/backend\(/[a-z]*\)\?\) = ""'
}

# What is done once per boot is done; xl leaves directories in the store.
measure xl 1 warm
measure xy 1 warm
host_state >/tmp/state.before
# xl's many disks come last: they take minutes, and may never come to an end.
for disks in $sizes; do
    for round in $(seq "$rounds"); do
        measure xy "$disks" "$disks"
        [ "$disks" -le 8 ] || { [ "$disks" -le 32 ] && [ "$round" = 1 ]; } || continue
        measure xl "$disks" "$disks"
    done
done
check "nothing is left of all these" same_but_folders

# Logical volumes. xy activates those that a VM needs, and lets them go; for xl all are active all the time.
modprobe -a ext4 dm-mod || fail "no device mapper"
mkdir -p /run/lock/lvm /etc/lvm
volumes=0
for disks in $sizes_on_lvm; do [ "$disks" -le $volumes ] || volumes=$disks; done
truncate -s $((volumes * 4 + 64))M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
xy sr-create g lvm "device=$disk" || fail "sr-create"
# One run of LVM makes all of them, where xy would start a few for each: it is not what is measured.
echo 'activation { udev_sync=0 udev_rules=0 } devices { obtain_device_list_from_udev=0 }' >/etc/lvm/lvm.conf
for number in $(seq 0 $((volumes - 1))); do
    echo "lvcreate -y -an -Zn -Wn -L 4m -n vdi-d$number xylem-g"
done | lvm >/results/lvm.log 2>&1
[ "$(xy vdi-list g | grep -c '^g:d')" = $volumes ] || fail "of $volumes volumes there are: $(xy vdi-list g; tail -n 3 /results/lvm.log)"
all_volumes() {
    lvm vgchange "$1" -K xylem-g >/results/lvm.log 2>&1 ||
        fail "vgchange $1: $(tail -n 1 /results/lvm.log)"
}
host_state >/tmp/state.before
for disks in $sizes_on_lvm; do
    for round in $(seq "$rounds"); do
        [ "$disks" -le 32 ] || [ "$round" = 1 ] || continue
        measure xy "$disks" "lvm-$disks" vdi
        [ "$disks" -le 8 ] || { [ "$disks" -le 32 ] && [ "$round" = 1 ]; } || continue
        all_volumes -ay
        measure xl "$disks" "lvm-$disks" phy
        gave=$?
        all_volumes -an
        # What was swept away was looked at while all volumes were there.
        [ $gave = 0 ] || host_state >/tmp/state.before
    done
done
check "nothing is left of those on LVM" same_but_folders

for disks in $sizes; do
    [ "$disks" -le 32 ] || [ "$disks" -gt 128 ] || measure xl "$disks" "$disks"
done
# Of these no goal is set.
limit=$((limit * 2 / 3))
measure_many xy
check "nothing is left of VMs side by side" same_but_folders
measure_many xl
is_last=1
for disks in $sizes; do
    [ "$disks" -gt 128 ] || continue
    if measure xl "$disks" "$disks"; then check "nothing is left at the end" same_but_folders; fi
done
