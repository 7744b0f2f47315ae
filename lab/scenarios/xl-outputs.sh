# Every verb that prints, by xl and by us in xl's place, on the same domains: the same text and exit status, also for wrong words.
# docs/verbs.md says what differs; a difference that is not listed there fails.
. /lab/lib.sh
start_xylemd
mkdir -p /tmp/ours.bin /results/differ
ln -s "$(command -v xy)" /tmp/ours.bin/xl
ours() { /tmp/ours.bin/xl "$@"; }

# run WHO WORDS...: leaves text and status, without times and who runs at the moment.
run() {
    who=$1
    shift
    if [ "$who" = ours ]; then ours "$@" >/tmp/$who.out 2>/tmp/$who.err; else xl "$@" >/tmp/$who.out 2>/tmp/$who.err; fi
    echo $? >/tmp/$who.status
    sed -i -e 's/ [r-][b-][p-][s-][-a-zA-Z?][d-]  */ STATE /' -e 's/ [r-][b-]-[-p]*  */ STATE /' -e 's/ [0-9]*\.[0-9]\b  */ TIME /' -e 's/ [0-9]*\.[0-9]$/ TIME/' \
        -e 's/^\(.\{44\}\) *[0-9]* STATE/\1 CPU STATE/' -e 's/[0-9]*:[0-9][0-9]:[0-9][0-9]/CLOCK/g' \
        -e 's/^\(free_memory  *: \).*/\1N/' -e 's/^\(Domain-0 .*\)$/\1/' /tmp/$who.out
}
# same WORDS...: text and status are the same.
same() {
    run theirs "$@"
    run ours "$@"
    cp /tmp/theirs.out "/results/differ/$(echo "$*" | tr ' /' '__').xl"
    cp /tmp/ours.out "/results/differ/$(echo "$*" | tr ' /' '__').xy"
    diff /tmp/theirs.out /tmp/ours.out && diff /tmp/theirs.status /tmp/ours.status
}
# same_end WORDS...: status is the same, and nothing is printed on standard output by either.
same_end() {
    run theirs "$@"
    run ours "$@"
    echo "$*: xl $(cat /tmp/theirs.status): $(head -1 /tmp/theirs.err)   ours $(cat /tmp/ours.status): $(head -1 /tmp/ours.err)"
    cmp /tmp/theirs.status /tmp/ours.status
}

# differ XL OURS WORDS...: these statuses, as docs/verbs.md says.
differ() {
    expected="$1 $2"
    shift 2
    run theirs "$@"
    run ours "$@"
    echo "$*: xl $(cat /tmp/theirs.status), ours $(cat /tmp/ours.status)"
    [ "$(cat /tmp/theirs.status) $(cat /tmp/ours.status)" = "$expected" ]
}

unikernel_cfg one "type = 'pv'" "vcpus = 1" "vif = ['mac=00:16:3e:00:00:01,bridge=xenbr0']"
check "create by us" ours create -q /tmp/one.cfg
unikernel_cfg two "type = 'pv'" "vcpus = 1" "vif = ['mac=00:16:3e:00:00:02,bridge=xenbr0']"
check "create by xl" xl create -q /tmp/two.cfg

for words in "list" "list one" "list two" "list -v" "list -Z" "list -c" "list -n" "vcpu-list" "vcpu-list one" "domid one" \
    "domname 0" "vm-list" "info" "info -n" "uptime" "uptime one" "uptime -s" "claims" "network-list one" "channel-list one" "vkb-list one" "block-list one" \
    "sharing" "sharing one" "getenforce" "sched-credit2" "sched-credit2 -d one" "sched-credit2 -s" "cpupool-list" "cpupool-list -c" "dmesg"; do
    # shellcheck disable=SC2086 # one word each
    check "the same: $words" same $words
done

for words in "nonsense" "-x list" "dom" "-N pause one" "domid" "domid none" "domname 999" "list none" "list -x" "pause none" "pause" \
    "unpause none" "destroy none" "shutdown" "shutdown none" "reboot none" "vcpu-list none" "uptime none" "network-list none" \
    "mem-set none 3" "mem-set one x" "mem-max none 3" "vcpu-set none 1" "vcpu-set one x" "vcpu-pin none 0 all" "rename none x" \
    "rename one two" "trigger none nmi" "trigger one nonsense" "sysrq none h" "sysrq one hh" "save none /tmp/x" "restore /nothing" \
    "sched-credit2 -d none" "sched-credit -d one" "cpupool-destroy none" "cpupool-rename none x" "cpupool-migrate one none" \
    "cpupool-cpu-add none 0" "block-detach one xvdz" "block-detach none xvda" "network-detach one 9" "block-attach none phy:/x,xvda,w" \
    "cd-eject one hda" "console none" "vncviewer none" "migrate none host" "button-press none power" \
    "qemu-monitor-command one info" "setenforce 1" "setenforce maybe" "loadpolicy /nothing" "loadpolicy /etc/hostname" "sharing none" "set-parameters nonsense=1" \
    "set-parameters com1=9600" "console -t serial none" "console -t nonsense one" "console -n 1 none" "pci-attach none 00:00.0" "usbctrl-attach none" "vtpm-attach none" "vkb-attach one"; do
    # shellcheck disable=SC2086 # one word each
    check "the same end: $words" same_end $words
done

# What changes a domain, by xl of its own and by us of ours: the same on standard output, and the same status. In WORDS, NAME is the
# domain.
said() {
    number=$(xl domid "$2" 2>/dev/null || echo none)
    # shellcheck disable=SC2046 # one word each
    run "$1" $(echo "$3" | sed "s/NAME/$2/g")
    sed -i -e 's/00:16:3eCLOCK:0[12]/MAC/' -e "s/\b$2\b/NAME/g" -e "s/\b$number\b/DOMID/g" "/tmp/$1.out" "/tmp/$1.err"
    cp "/tmp/$1.out" "/results/differ/change $(echo "$3" | tr '/' '_').$1"
    cat "/tmp/$1.err" >>"/results/differ/change $(echo "$3" | tr '/' '_').$1"
}
each() {
    # The process that xl leaves with a domain may still be at it when "shutdown -w" has ended.
    case $1 in create*) wait_for '! xl domid one && ! xl domid two' 30 ;; esac
    said theirs two "$1"
    said ours one "$1"
    diff /tmp/theirs.out /tmp/ours.out && diff /tmp/theirs.status /tmp/ours.status
}
truncate -s 1M /tmp/one.img /tmp/two.img /tmp/one-c.img /tmp/two-c.img
for words in "pause NAME" "unpause NAME" "mem-max NAME 16" "mem-set NAME 8" "vcpu-set NAME 1" \
    "vcpu-pin NAME 0 0 all" "vcpu-pin NAME all all" "sched-credit2 -d NAME -w 300" "sched-credit2 -d NAME" "sysrq NAME h" \
    "trigger NAME nmi" "debug-keys h" "rename NAME NAME-2" "rename NAME-2 NAME" "config-update /tmp/NAME.cfg" "config-update NAME /tmp/NAME.cfg" \
    "block-attach NAME file:/tmp/NAME.img,xvdb,w" "block-attach NAME format=raw,vdev=xvdc,access=rw,target=/tmp/NAME-c.img" \
    "network-attach NAME bridge=xenbr0" "network-attach NAME bridge=nobr" "cd-insert NAME hdc /tmp/NAME.img" "cd-eject NAME hdc" \
    "qemu-monitor-command NAME info" "cpupool-migrate NAME Pool-0" "domname NAME" \
    "dump-core NAME /tmp/NAME.core" "uptime -s NAME" \
    "network-detach NAME 0" "block-detach NAME xvdb" "shutdown -F -w NAME" "create /tmp/NAME.cfg" \
    "destroy -f NAME" "create -q -p /tmp/NAME.cfg" "unpause NAME"; do
    check "the same of a domain of each: $words" each "$words"
done

# Ours has more fields that libxl leaves out.
values() { sed -n 's/^ *"\(name\|uuid\|type\|max_vcpus\|max_memkb\|target_memkb\|video_memkb\|tsc_mode\|kernel\|cmdline\|ramdisk\|mac\|bridge\|run_hotplug_scripts\|on_poweroff\|on_reboot\|on_watchdog\|on_crash\|on_soft_reset\)": \(.*[^,]\),\{0,1\}$/\1 \2/p' "$1" | sort; }
same_config() {
    for lab_name in one two; do sed "s/'$lab_name'/'new-$lab_name'/" /tmp/$lab_name.cfg >/tmp/new-$lab_name.cfg; done
    said theirs two "create -n /tmp/new-NAME.cfg"
    said ours one "create -n /tmp/new-NAME.cfg"
    for lab_who in theirs ours; do values /tmp/$lab_who.out | grep -v -e uuid -e DOMID >/tmp/$lab_who.values; done
    cat /tmp/theirs.values
    diff /tmp/theirs.status /tmp/ours.status && [ -s /tmp/theirs.values ] && ! grep -v -x -F -f /tmp/ours.values /tmp/theirs.values
}
check "the same of a file of each: create -n" same_config

# A parameter that each of both sets.
level() { xenhypfs cat /params/guest_loglvl; }
check "set-parameters by xl" xl set-parameters guest_loglvl=error
level >/tmp/theirs
check "set-parameters by us" ours set-parameters guest_loglvl=none
level >/tmp/ours
check "the parameter is another" test "$(cat /tmp/theirs)" != "$(cat /tmp/ours)"
check "set-parameters by us, as by xl" ours set-parameters guest_loglvl=error
level >/tmp/ours
check "the parameter is the same" diff /tmp/theirs /tmp/ours

check "xl's own status: block-list none" differ 0 1 block-list none
check "xl's own status: button-press one power" differ 0 1 button-press one power
check "xl's own status: create of a name that is taken" differ 3 1 create -q /tmp/one.cfg
check "xl's own status: create /nothing" differ 3 1 create /nothing
check "xl's own status: create" differ 6 1 create
check "xl's own status: dmesg x" differ 0 2 dmesg x
check "xl's own status: psr-hwinfo" differ 253 0 psr-hwinfo
check "what psr-hwinfo prints is the same" diff /tmp/theirs.out /tmp/ours.out
for words in "psr-hwinfo -a" "psr-hwinfo -b" "psr-cmt-attach one" "psr-cmt-detach one" "psr-cat-show" "psr-cat-show -l 2" "psr-mba-show" \
    "psr-cat-set one 1" "psr-mba-set one 10"; do
    # shellcheck disable=SC2086 # one word each
    check "xl's own status: $words" differ 253 1 $words
done
check "xl's own status: psr-cmt-show" differ 255 1 psr-cmt-show cache-occupancy

xl list -l one >/results/list-l.xl
ours list -l one >/results/list-l.xy
values /results/list-l.xl >/tmp/theirs
values /results/list-l.xy >/tmp/ours
check "list -l has the same values" diff /tmp/theirs /tmp/ours
check "destroy" ours destroy one
check "destroy by xl" xl destroy two
