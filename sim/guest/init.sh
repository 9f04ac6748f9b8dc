#!/bin/busybox sh
# What a guest does from its start on (cargo xtask vm): it mounts what outlived the last crash, or makes it, and runs
# the program that verifies it and goes on until the next one. The kernel's parameter `guest` has the program's words,
# the first of which says what the store is on, and the second how it will end. PATIENCE, after so many seconds it is
# stuck, and SOUND, after so many a failing disk fails, are filled in.

b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done
for word in $($b cat /proc/cmdline); do
    case $word in guest=*) words=$(echo ${word#guest=} | $b tr , ' ') ;; esac
done
set -- $words

# Whoever waits for ever is shown before the machine is given up.
($b sleep PATIENCE; echo 8 > /proc/sys/kernel/printk; echo guest: stuck
echo l > /proc/sysrq-trigger; echo t > /proc/sysrq-trigger) &

mapped() { # DEVICE TABLE...: a device of the device mapper
    /bin/dmsetup create d --noudevsync --table "0 $($b cat /sys/block/vda/size) $2 $1 $3"
    disk=/dev/dm-0
}
disk=/dev/vda region= how= kind=ext4
case $2 in
f) mapped /dev/vda flakey "0 SOUND 1000 1 error_writes" ;;
w) mapped /dev/vda log-writes /dev/vdb ;;
esac
mount() { $b mount -t $kind $how $disk /mnt; }

# Takes an NVDIMM's namespace from its driver, and gives it to another one as $1: a header on it says from then on where
# its pages are described, and it can be mapped directly.
claimed() {
    cd /sys/bus/nd/devices
    echo namespace0.0 > ../drivers/nd_pmem/unbind
    echo ram > $1/mode
    echo 2097152 > $1/align
    $b cat /proc/sys/kernel/random/uuid > $1/uuid
    echo namespace0.0 > $1/namespace
    echo $1 > ../drivers/$2/bind
    cd /
}

made=yes
case $1 in
power | os | disk | xfs | warm)
    disk=/dev/pmem0 how='-o dax'
    if mount 2> /dev/null; then
        $b umount /mnt
    else
        echo guest: new memory
        [ $($b cat /sys/block/pmem0/queue/dax) = 1 ] || claimed pfn0.0 nd_pmem
        /bin/mkfs.ext4 -q -b 4096 $disk
        made=
    fi
    ;;
dax | wild)
    region=/dev/dax0.0
    if [ ! -e $region ]; then
        echo guest: new memory
        claimed dax0.0 dax_pmem
        made=
    fi
    ;;
esac

case $1 in
wild)
    /bin/guest wild $region $2 $3 $4 $5
    echo guest: ended $?
    $b poweroff -f
    ;;
disk | xfs | warm)
    $b mkdir /pm
    $b mount -t ext4 -o dax /dev/pmem0 /pm
    region=/pm/region
    ;;
esac
make='/bin/mkfs.ext4 -q -b 4096' check='/bin/e2fsck -f -n'
case $1 in xfs) kind=xfs make='/bin/mkfs.xfs --unsupported -q' check='/bin/xfs_repair -n' ;; esac
if [ -n "$region" ]; then
    /bin/guest disk $region /dev/nbd0 &
    until [ -e /ready ]; do $b usleep 20000; done
    disk=/dev/nbd0 how=
    if [ -n "$made" ]; then
        # What was written last is in the journal.
        mount
        $b umount /mnt
        $check $disk > /check 2>&1 || { $b cat /check; echo guest: ended by $check; }
    else
        echo guest: new disk
        $make $disk
        $b sync
    fi
fi
mount || echo guest: no disk
if [ $1 = keys ]; then
    export TMPDIR=/mnt CALIBURN_KEYS=wanted
    ended=0
    for test in /tests/*; do $test --test-threads 1 || ended=1; done
    echo guest: ended $ended
    $b poweroff -f
fi
/bin/guest /mnt/store $words
echo guest: ended $?
$b umount /mnt
$b sync
[ $disk = /dev/vda ] || /bin/dmsetup remove --noudevsync d
$b poweroff -f
