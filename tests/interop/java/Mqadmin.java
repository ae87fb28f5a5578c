import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, driven by JSON lines: {"id": 1, "do": "mqadmin", "arguments": ["topicList", …]} runs one command
 * in this process, which saves the start of a virtual machine for each; the answer is what it printed. A command that
 * ends the process (for arguments it does not know, say) ends itself only; Java 18 needs -Djava.security.manager=allow.
 * Every run makes all commands anew, for some keep the clients that they shut down.
 */
public class Mqadmin {
    private static final PrintStream ANSWERS = System.out;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setSecurityManager(new NoExit());
        print(Map.of("event", "ready"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> command = new HashMap<>(RemotingSerializable.fromJson(line, Map.class));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("id", command.get("id"));
            try {
                answer.put("result", run((List<?>) command.get("arguments")));
            } catch (Throwable error) {
                answer.put("error", error.toString());
            }
            print(answer);
        }
        System.setSecurityManager(null);
        System.exit(0);
    }

    /** Allows all but the end of the process. */
    private static class NoExit extends SecurityManager {
        @Override
        public void checkExit(int status) {
            throw new SecurityException("exit " + status);
        }

        @Override
        public void checkPermission(Permission permission) {
        }
    }

    private static String run(List<?> arguments) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream captured = new PrintStream(printed, true, StandardCharsets.UTF_8);
        PrintStream errors = System.err;
        System.setOut(captured);
        System.setErr(captured);
        try {
            forgetCommands();
            MQAdminStartup.main0(arguments.stream().map(Object::toString).toArray(String[]::new), null);
        } catch (SecurityException exit) {
            captured.println(exit.getMessage());
        } finally {
            System.setOut(ANSWERS);
            System.setErr(errors);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    private static synchronized void print(Map<String, ?> line) {
        ANSWERS.println(RemotingSerializable.toJson(line, false));
        ANSWERS.flush();
    }
}
