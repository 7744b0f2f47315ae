# The verbs that change a running VM, a pool or Xen, by xy and by xl in turn on the same domains: what one sets, the other sees,
# and both print the same. The guest says itself what memory and CPUs it has.
. /lab/lib.sh
start_xylemd

# same WORDS...: xy and xl print the same for them, but for times and who runs at the moment.
same() {
    xy "$@" >/tmp/ours 2>&1
    ours=$?
    xl "$@" >/tmp/theirs 2>&1
    theirs=$?
    sed -i -e 's/ [r-][b-]-[-p]*  */ STATE /' -e 's/ [0-9]*\.[0-9]  */ TIME /' -e 's/^\(.\{49\}\) *[0-9]* STATE/\1 CPU STATE/' /tmp/ours /tmp/theirs
    diff /tmp/theirs /tmp/ours && [ $ours = $theirs ]
}

# mib NAME: what it has, by xl.
mib() { xl list "$1" | awk 'NR == 2 { print $3 }'; }
# vcpus_online NAME: by xl.
vcpus_online() { xl vcpu-list "$1" | awk 'NR > 1 && $4 != "-"' | wc -l; }
# pins NAME VCPU: hard and soft, by xl.
pins() { xl vcpu-list "$1" | awk -v vcpu="$2" 'NR > 1 && $3 == vcpu { print $(NF - 2), $(NF - 1), $NF }'; }

linux_cfg lin "type = 'pvh'" "memory = 128" "vcpus = 2" "cpu_weight = 300" "cpus = '0'" "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "create" xy create -q /tmp/lin.cfg
check "it is up" console_wait lin 'XYLEM-GUEST: ready' 600
check "cpu_weight is as xl reads it" sh -c 'xl sched-credit2 -d lin | grep -q " 300 "'
check "cpus is as xl reads it" [ "$(pins lin 1)" = "0 / all" ]

for words in "sched-credit2" "sched-credit2 -d lin" "cpupool-list" "cpupool-list -c" "vcpu-list lin" "claims" "domid lin"; do
    # shellcheck disable=SC2086 # one word each
    check "both print the same: $words" same $words
done
check "sched-credit2 -w" xy sched-credit2 -d lin -w 512 -c 150
check "xl sees weight and cap" sh -c 'xl sched-credit2 -d lin | grep -q " 512 *150"'
check "xl sets them" xl sched-credit2 -d lin -w 256 -c 0
check "both print the same: sched-credit2 -d lin" same sched-credit2 -d lin
check "another scheduler is refused" sh -c '! xy sched-credit -d lin -w 5'

check "vcpu-pin" xy vcpu-pin lin 1 all
check "xl sees where it runs" [ "$(pins lin 1)" = "all / all" ]
check "vcpu-pin of domain 0" xy vcpu-pin 0 0 0
check "both print the same: vcpu-list" same vcpu-list
check "vcpu-pin of domain 0, back" xy vcpu-pin 0 0 all
check "vcpu-set" xy vcpu-set lin 1
check "one vCPU is online" wait_for '[ "$(vcpus_online lin)" = 1 ]' 60
check "xl sets vCPUs of our VM" xl vcpu-set lin 2
# The guest's own udev would bring it up; it has none.
check "the guest is told" [ "$(xenstore-read "/local/domain/$(xy domid lin)/cpu/1/availability")" = online ]

check "mem-set" xy mem-set lin 100
check "the guest has given memory back" wait_for '[ "$(mib lin)" -le 101 ]' 60
check "mem-set, up again" xy mem-set lin 120
check "the guest has taken it" wait_for '[ "$(mib lin)" -ge 119 ]' 60
check "above its maximum is refused" refused_with 'above its maximum' xy mem-set lin 999
check "mem-max" xy mem-max lin 140
check "then it may have that" xy mem-set lin 130
check "xl reads our maximum" [ "$(xenstore-read "/local/domain/$(xy domid lin)/memory/static-max")" = $((140 << 10)) ]

check "sysrq" xy sysrq lin h
check "the guest has heard it" console_wait lin 'sysrq: HELP' 60
check "rename" xy rename lin web
check "xl has the new name" sh -c 'xl list web && ! xl domid lin'
check "xl renames our VM" xl rename web lin
check "xy finds it by that" xy domid web
check "a taken name is refused" refused_with 'Domain-0' xy rename web Domain-0

check "debug-keys" xy debug-keys h
check "Xen has answered" sh -c "xy dmesg | grep -q \"'h' pressed\""
xy dmesg >/tmp/ours
xl dmesg >/tmp/theirs
check "both print the same: dmesg" cmp /tmp/ours /tmp/theirs

check "cpupool-create without CPUs" xy cpupool-create 'name="lab"' 'sched="credit"'
check "both print the same: cpupool-list, with ours" same cpupool-list
check "cpupool-rename" xy cpupool-rename lab lab2
check "xl destroys it" xl cpupool-destroy lab2
check "xl creates one" xl cpupool-create 'name="theirs"'
check "both print the same: cpupool-list, with theirs" same cpupool-list
check "we destroy it" xy cpupool-destroy theirs

xy doctor
xy doctor --json >/results/doctor.json
check "doctor prints JSON" grep -q '"' /results/doctor.json
check "bugreport" xy bugreport /results/report.tar
check "it is a tar file" sh -c 'tar tf /results/report.tar | grep -q .'

check "shutdown" xy shutdown -w web
unikernel_cfg stays "type = 'pv'" "nomigrate = 1"
check "create a VM that never moves" xy create -q /tmp/stays.cfg
check "it is not saved" refused_with 'nomigrate' xy save stays /tmp/stays.save
check "destroy" xy destroy stays
