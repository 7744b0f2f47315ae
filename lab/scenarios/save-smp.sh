# Linux guests with several vCPUs, of which some are off line, are saved and go on with those that they had, here and in
# another domain, by our files and by xl's.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
mkdir -p /saved
ticks() { grep -o 'tick=[0-9]*' "$(console_log "$1")" | tail -1 | cut -d = -f 2; }
# It counts on, and after that works on these CPUs.
works_on() {
    lab_before=$(ticks "$1")
    wait_for "[ \$(ticks $1) -gt $((lab_before + 2)) ]" 120 || return 1
    lab_cpus=$(grep -o 'cpus=[0-9]*' "$(console_log "$1")" | tail -1)
    [ "$lab_cpus" = "cpus=$2" ] || { echo "$lab_cpus"; return 1; }
}
gone() { ! xl list "$1" >/dev/null 2>&1; }

for kind in pvh pv; do
    name=smp-$kind
    echo "== $kind"
    linux_cfg $name "type = '$kind'" "tsc_mode = 'native'" "memory = 128" "vcpus = 2" "maxvcpus = 4" \
        "extra = 'console=hvc0 quiet $FAST_BOOT xylem.tick=1 xylem.cpus=1'"
    check "create" xy create -q /tmp/$name.cfg
    check "it is up" console_wait $name 'XYLEM-GUEST: ready' 400
    check "it works on its CPUs" works_on $name 01
    check "save -c" xy save -c $name /saved/smp
    check "it works on them here" works_on $name 01
    check "save" xy save $name /saved/smp
    check "it is gone" gone $name
    check "restore" xy restore /saved/smp
    check "it works on them elsewhere" works_on $name 01
    check "we save it for xl" xy save --format xl $name /saved/xl
    check "xl restores it" xl restore /saved/xl
    check "it works on them by xl" works_on $name 01
    check "xl saves it" xl save $name /saved/xl
    check "we restore it" xy restore /saved/xl
    check "it works on them by us" works_on $name 01
    check "it obeys" xy shutdown -w $name
done
check "dom0 is as before" same_state /results/state.before
