import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * MQAdminExt, as the Dashboard calls it, driven by JSON lines: {"id": 1, "do": "createTopic", "arguments": […]} calls
 * the method of that name whose parameters the arguments fit. The answer holds the result as the JSON text that
 * RocketMQ makes of it, or the exception with its response code. messageTrackDetail takes a topic and a message id.
 */
public class Dashboard {
    public static void main(String[] arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(arguments[0]);
        admin.setInstanceName(UUID.randomUUID().toString());
        admin.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        print(Map.of("event", "ready"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> command = new HashMap<>(RemotingSerializable.fromJson(line, Map.class));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("id", command.get("id"));
            try {
                Object result = call(admin, command.get("do").toString(), (List<?>) command.get("arguments"));
                answer.put("result", result == null ? null : RemotingSerializable.toJson(result, false));
            } catch (InvocationTargetException error) {
                answer.put("error", described(error.getCause()));
            } catch (Throwable error) {
                answer.put("error", error.toString());
            }
            print(answer);
        }
        System.exit(0);
    }

    private static Object call(DefaultMQAdminExt admin, String name, List<?> given) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == given.size()) {
                Object[] converted = converted(method.getParameterTypes(), given);
                if (converted != null) {
                    return method.invoke(admin, converted);
                }
            }
        }
        if (name.equals("messageTrackDetail")) {
            return admin.messageTrackDetail(admin.viewMessage(given.get(0).toString(), given.get(1).toString()));
        }
        throw new NoSuchMethodException(name + given);
    }

    /** The arguments as these types, or null where they do not fit. */
    private static Object[] converted(Class<?>[] types, List<?> given) {
        Object[] converted = new Object[types.length];
        for (int each = 0; each < types.length; each++) {
            Object value = given.get(each);
            if (types[each] == String.class && (value == null || value instanceof String)) {
                converted[each] = value;
            } else if (types[each] == long.class && value instanceof Number) {
                converted[each] = ((Number) value).longValue();
            } else if (types[each] == int.class && value instanceof Number) {
                converted[each] = ((Number) value).intValue();
            } else if (types[each] == boolean.class && value instanceof Boolean) {
                converted[each] = value;
            } else if (!types[each].isPrimitive() && types[each] != String.class && value != null
                && !(value instanceof String || value instanceof Number || value instanceof Boolean)) {
                converted[each] = RemotingSerializable.fromJson(RemotingSerializable.toJson(value, false), types[each]);
            } else {
                return null;
            }
        }
        return converted;
    }

    private static String described(Throwable error) {
        if (error instanceof MQClientException) {
            return "code " + ((MQClientException) error).getResponseCode();
        }
        if (error instanceof MQBrokerException) {
            return "code " + ((MQBrokerException) error).getResponseCode();
        }
        return error.toString();
    }

    private static void print(Map<String, ?> line) {
        System.out.println(RemotingSerializable.toJson(line, false));
        System.out.flush();
    }
}
