/** Stores that are caught beside the JVM's handler of SIGSEGV, which makes exceptions of what null is asked for. */
public class Caught {
    static native void open(String directory, int kind);
    static native void begin(int turn);
    static native void end(int turn);
    static native void close();

    int field = 1;

    static int nulls(int count) {
        int caught = 0;
        for (int i = 0; i < count; i++) {
            Caught nobody = i % 2 == 0 ? null : new Caught();
            try {
                caught += nobody.field - 1;
            } catch (NullPointerException e) {
                caught++;
            }
        }
        return caught;
    }

    public static void main(String[] args) throws Exception {
        System.load(args[0]);
        for (int kind = 0; kind < 4; kind++) {
            open(args[1], kind);
            for (int turn = 1; turn <= 6; turn++) {
                begin(turn);
                if (nulls(2000) != 1000) throw new AssertionError("exceptions are missing");
                System.gc();
                end(turn);
            }
            close();
        }
        System.out.println("sound");
    }
}
