import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Apache's producer under so many threads: `Sends NAME_SERVER THREADS TOTAL [BATCH]` prints messages a second, and
 *  processor microseconds for each, warmed up. */
public class Sends {
    public static void main(String[] arguments) throws Exception {
        int threads = Integer.parseInt(arguments[1]), total = Integer.parseInt(arguments[2]);
        int batch = arguments.length > 3 ? Integer.parseInt(arguments[3]) : 1;
        DefaultMQProducer producer = new DefaultMQProducer("PG");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        run(producer, threads, total / 2, batch);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = system.getProcessCpuTime();
        double rate = run(producer, threads, total, batch);
        System.out.printf("%.0f %.2f%n", rate, (system.getProcessCpuTime() - before) * 1e-3 / total);
        System.out.flush();
        System.exit(0);
    }

    private static double run(DefaultMQProducer producer, int threads, int total, int batch) throws Exception {
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    for (int count = 0; count < total / threads / batch; count++) {
                        send(producer, batch);
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
                done.countDown();
            }).start();
        }
        done.await();
        return total / ((System.nanoTime() - start) * 1e-9);
    }

    private static void send(DefaultMQProducer producer, int batch) throws Exception {
        if (batch == 1) {
            producer.send(message());
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int number = 0; number < batch; number++) {
            messages.add(message());
        }
        producer.send(messages);
    }

    private static Message message() {
        return new Message("TopicTest", new byte[128]);
    }
}
