# Is this a Xen host? The hypervisor, the store and the modules answer.
. /lab/lib.sh

xl info
xl list
xenstore-ls /
lsmod
ip addr show dev xenbr0

check "xl sees dom0" sh -c 'xl list | grep -q "^Domain-0 "'
check "the store knows dom0's name" test "$(xenstore-read /local/domain/0/name)" = Domain-0
check "a value that is written can be read" sh -c \
    'xenstore-write /lab/value 1 && [ "$(xenstore-read /lab/value)" = 1 ] && xenstore-rm /lab'
check "there is a free loop device" losetup -f
check "the bridge is up" grep -q 1 /sys/class/net/xenbr0/carrier_changes /sys/class/net/xenbr0/flags
for module in xen_blkback xen_netback bridge loop xen_gntdev xen_evtchn; do
    check "module $module is loaded" grep -q "^$module " /proc/modules
done
xl list >/results/xl-list.txt
